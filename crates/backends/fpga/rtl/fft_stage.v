// One stage of the transform: butterflies of samples DELAY apart, and the turn of their differences.
//
// In the first half of each 2 * DELAY samples the input waits and the differences of the half before come out, turned; in the second half
// the sums come out and the differences wait. The first DELAY outputs after `clear` are nothing. Three registers follow.
`default_nettype none
module panoply_fft_stage #(
    parameter SIZE  = 64,
    parameter DELAY = 32
) (
    input  wire               clk,
    input  wire               clear,
    input  wire               enable,
    input  wire signed [31:0] in_re,
    input  wire signed [31:0] in_im,
    input  wire               in_valid,
    output reg  signed [31:0] out_re,
    output reg  signed [31:0] out_im,
    output reg                out_valid
);
    `include "twiddles.vh"
    localparam FRACTION = `TWIDDLE_FRACTION;
    localparam STRIDE   = SIZE / (2 * DELAY);
    localparam BITS     = $clog2(2 * DELAY);
    localparam PLACE    = (DELAY > 1) ? $clog2(DELAY) : 1;

    // A ring of DELAY places: what is read was written DELAY samples ago.
    reg [63:0]     waiting [0:DELAY-1];
    reg [BITS-1:0] count;
    wire           second = count[BITS-1];
    wire [PLACE-1:0] place = (DELAY > 1) ? count[PLACE-1:0] : {PLACE{1'b0}};
    wire signed [31:0] old_re = waiting[place][31:0];
    wire signed [31:0] old_im = waiting[place][63:32];
    wire signed [31:0] difference_re = old_re - in_re;
    wire signed [31:0] difference_im = old_im - in_im;
    wire [15:0] turn = second ? 16'd0 : {{(16-PLACE){1'b0}}, place} * STRIDE;

    reg signed [31:0] a_re, a_im;
    reg signed [`TWIDDLE_WIDTH-1:0] w_re, w_im;
    reg               a_valid, p_valid;
    reg signed [63:0] p_rr, p_ii, p_ri, p_ir;
    localparam signed [63:0] HALF = 64'sd1 <<< (FRACTION - 1);
    wire signed [63:0] turned_re = (p_rr - p_ii + HALF) >>> FRACTION;
    wire signed [63:0] turned_im = (p_ri + p_ir + HALF) >>> FRACTION;

    always @(posedge clk) begin
        if (clear) begin
            count     <= {BITS{1'b0}};
            a_valid   <= 1'b0;
            p_valid   <= 1'b0;
            out_valid <= 1'b0;
        end else if (enable) begin
            if (in_valid) begin
                count <= count + 1'b1;
                waiting[place] <= second ? {difference_im, difference_re} : {in_im, in_re};
            end
            a_valid <= in_valid;
            a_re    <= second ? old_re + in_re : old_re;
            a_im    <= second ? old_im + in_im : old_im;
            w_re    <= twiddle_re(turn);
            w_im    <= twiddle_im(turn);
            p_valid <= a_valid;
            p_rr    <= a_re * w_re;
            p_ii    <= a_im * w_im;
            p_ri    <= a_re * w_im;
            p_ir    <= a_im * w_re;
            out_valid <= p_valid;
            out_re    <= turned_re[31:0];
            out_im    <= turned_im[31:0];
        end
    end
endmodule
`default_nettype wire
