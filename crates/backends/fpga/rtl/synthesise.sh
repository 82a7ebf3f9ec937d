#!/bin/sh
# Synthesises each core for ECP5 with Yosys; with ICE40=1 also places and routes what fits for iCE40 HX8K with nextpnr.
# Prints one line for each core: resources, the longest path in cells between registers, and the clock that nextpnr reached.
set -eu
cd "$(dirname "$0")"
command -v yosys >/dev/null || { echo "skipped: yosys is not installed"; exit 0; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
count() { awk -v cell="$1" '$1 == cell { sum = $2 } END { print sum + 0 }' "$2"; }
for spec in ${*:-"affine" "crc32" "fir:TAPS=16:WIDTH=16" "fir:TAPS=64:WIDTH=16" "fir:TAPS=16:WIDTH=24" "fft:SIZE=128" "viterbi:STEPS_MAX=4096"}; do
    core=${spec%%:*}
    name=$(echo "$spec" | tr ':=' '__')
    parameters=$(echo "$spec" | tr ':' '\n' | sed -n 's/^\([A-Z_]*\)=\(.*\)$/-set \1 \2/p' | tr '\n' ' ')
    {
        echo "read_verilog generated.vh $core.v"
        [ "$core" = fft ] && echo "read_verilog fft_stage.v"
        [ -n "$parameters" ] && echo "chparam $parameters panoply_$core"
        echo "synth_ecp5 -top panoply_$core"
        echo "tee -o $out/$name.stat stat"
        echo "tee -o $out/$name.path ltp * t:TRELLIS_FF %d t:DP16KD %d t:TRELLIS_DPR16X4 %d"
    } >"$out/$name.ys"
    yosys -q "$out/$name.ys" >"$out/$name.log" 2>&1 || { echo "$spec: $(tail -1 "$out/$name.log")"; continue; }
    path=$(sed -n 's/.*(length=\([0-9]*\)).*/\1/p' "$out/$name.path" | head -1)
    line="$spec: LUT4 $(count LUT4 "$out/$name.stat"), CCU2C $(count CCU2C "$out/$name.stat"), FF $(count TRELLIS_FF "$out/$name.stat")"
    line="$line, MULT18X18D $(count MULT18X18D "$out/$name.stat"), DP16KD $(count DP16KD "$out/$name.stat")"
    line="$line, RAM $(count TRELLIS_DPR16X4 "$out/$name.stat"), longest path $path cells"
    if [ -n "${ICE40:-}" ] && command -v nextpnr-ice40 >/dev/null; then
        sed -e "s/synth_ecp5 -top panoply_$core/synth_ice40 -top panoply_$core -json \\/dev\\/null/" -e '/^tee/d' "$out/$name.ys" >"$out/$name.ice.ys"
        sed -i "s#/dev/null#$out/$name.json#" "$out/$name.ice.ys"
        # Pins do not count: a core's ports end inside the chip.
        if timeout 300 yosys -q "$out/$name.ice.ys" >"$out/$name.ice.log" 2>&1 &&
            timeout 300 nextpnr-ice40 --hx8k --package ct256 --json "$out/$name.json" --pcf-allow-unconstrained --freq 100 --timing-allow-fail \
                >"$out/$name.pnr" 2>&1; then
            clock=$(sed -n "s/.*Max frequency for clock[^:]*: *\([0-9.]*\) MHz.*/\1/p" "$out/$name.pnr" | tail -1)
            line="$line, HX8K $clock MHz"
        else
            line="$line, HX8K no: $(grep -h ERROR "$out/$name.pnr" "$out/$name.ice.log" 2>/dev/null | head -1)"
        fi
    fi
    echo "$line"
done
