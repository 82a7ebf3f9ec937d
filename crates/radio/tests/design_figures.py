"""Figures for windows and the design of filters, computed by SciPy. python3 design_figures.py writes design_figures.txt: a name, then numbers."""
import scipy
import scipy.signal as signal
import numpy as np

lines = [f"# scipy {scipy.__version__}, numpy {np.__version__}"]


def add(name, values):
    lines.append(name + ": " + " ".join(repr(float(value)) for value in np.asarray(values).reshape(-1)))


for name, window in (("hann", "hann"), ("hamming", "hamming"), ("blackman", "blackman"), ("blackmanharris", "blackmanharris"), ("kaiser", ("kaiser", 8.6))):
    for length in (1, 8, 9):
        add(f"symmetric/{name}/{length}", signal.get_window(window, length, fftbins=False))
        add(f"periodic/{name}/{length}", signal.get_window(window, length))
BANDS = {"low": (0.2, "lowpass"), "high": (0.3, "highpass"), "pass": ([0.2, 0.45], "bandpass"), "stop": ([0.25, 0.6], "bandstop")}
for name, (edges, kind) in BANDS.items():
    add(f"sinc/{name}/31", signal.firwin(31, edges, window="hamming", pass_zero=kind))
    add(f"sinc/{name}/kaiser", signal.firwin(25, edges, window=("kaiser", 5.0), pass_zero=kind))
    for order in (1, 2, 3, 6, 8):
        designs = {"butter": signal.butter(order, edges, kind, output="sos"), "cheby1": signal.cheby1(order, 1.5, edges, kind, output="sos"),
                   "cheby2": signal.cheby2(order, 45, edges, kind, output="sos"), "ellip": signal.ellip(order, 1.5, 45, edges, kind, output="sos")}
        for design, sos in designs.items():
            # The gain and phase at eleven frequencies: sections may be paired and ordered otherwise.
            _, response = signal.sosfreqz(sos, worN=np.linspace(0.02, 0.98, 11) * np.pi)
            add(f"{design}/{name}/{order}", np.column_stack([response.real, response.imag]))
for taps in (21, 30):
    add(f"equiripple/low/{taps}", signal.remez(taps, [0, 0.3, 0.45, 1], [1, 0], weight=[1, 4], fs=2, maxiter=100, grid_density=64))
add("equiripple/pass/35", signal.remez(35, [0, 0.15, 0.25, 0.5, 0.65, 1], [0, 1, 0], fs=2, maxiter=100, grid_density=64))
with open("design_figures.txt", "w") as file:
    file.write("\n".join(lines) + "\n")
