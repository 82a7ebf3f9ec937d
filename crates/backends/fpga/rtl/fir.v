// A filter of finite response in transposed form: one sample in and one exact sum out on every clock.
//
// A beat is one signed sample of WIDTH bits in its lowest bits; an answer's beat is the sum, of up to 2 * WIDTH + log2(TAPS) bits, with its
// sign extended. Nothing is rounded. Samples before a packet's first are zero.
`default_nettype none
module panoply_fir #(
    parameter TAPS  = 64,
    parameter WIDTH = 24
) (
    input  wire             clk,
    input  wire             clear,
    input  wire             tap_write,
    input  wire [15:0]      tap_index,
    input  wire [WIDTH-1:0] tap_value,
    input  wire [63:0]      s_tdata,
    input  wire             s_tvalid,
    output wire             s_tready,
    input  wire             s_tlast,
    output reg  [63:0]      m_tdata,
    output reg              m_tvalid,
    input  wire             m_tready,
    output reg              m_tlast
);
    localparam SUM = 2 * WIDTH + $clog2(TAPS);

    wire enable = !m_tvalid || m_tready;
    assign s_tready = enable;

    reg signed [WIDTH-1:0] taps [0:TAPS-1];
    always @(posedge clk) if (tap_write && tap_index < TAPS) taps[tap_index[$clog2(TAPS)-1:0]] <= tap_value;

    reg signed [WIDTH-1:0]   sample;
    reg                      sample_valid, sample_last, product_valid, product_last;
    reg signed [2*WIDTH-1:0] products [0:TAPS-1];
    // sums[k] is what the samples so far add to the sum that comes k + 1 samples from now.
    reg signed [SUM-1:0]     sums [0:TAPS-1];
    wire signed [SUM-1:0]    sum = sums[0] + products[0];

    integer k;
    always @(posedge clk) begin
        if (clear) begin
            sample_valid  <= 1'b0;
            product_valid <= 1'b0;
            m_tvalid      <= 1'b0;
            for (k = 0; k < TAPS; k = k + 1) sums[k] <= {SUM{1'b0}};
        end else if (enable) begin
            sample        <= s_tdata[WIDTH-1:0];
            sample_valid  <= s_tvalid;
            sample_last   <= s_tlast;
            for (k = 0; k < TAPS; k = k + 1) products[k] <= sample * taps[k];
            product_valid <= sample_valid;
            product_last  <= sample_last;
            if (product_valid) begin
                for (k = 0; k < TAPS - 1; k = k + 1) sums[k] <= sums[k+1] + products[k+1];
                sums[TAPS-1] <= {SUM{1'b0}};
            end
            m_tvalid <= product_valid;
            m_tlast  <= product_last;
            m_tdata  <= {{(64-SUM){sum[SUM-1]}}, sum};
        end
    end
endmodule
`default_nettype wire
