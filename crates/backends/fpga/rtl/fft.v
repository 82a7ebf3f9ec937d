// The discrete Fourier transform of frames of SIZE complex samples, in a pipeline that takes one sample on every clock.
//
// A beat has the real part in its lower and the imaginary part in its upper 32 bits; inputs have 24 bits with their sign, so that sums grow
// without overflow. A packet is one or more whole frames. Nothing is divided; products with twiddles are rounded half up.
`default_nettype none
module panoply_fft #(
    parameter SIZE = 64
) (
    input  wire        clk,
    input  wire        clear,
    input  wire [63:0] s_tdata,
    input  wire        s_tvalid,
    output wire        s_tready,
    input  wire        s_tlast,
    output reg  [63:0] m_tdata,
    output reg         m_tvalid,
    input  wire        m_tready,
    output reg         m_tlast
);
    localparam STAGES = $clog2(SIZE);

    wire enable = !m_tvalid || m_tready;
    // Behind the last sample zeros follow, until what waits in the stages is out.
    reg flushing;
    assign s_tready = enable && !flushing;
    wire taken = s_tvalid && s_tready;

    wire signed [31:0] re [0:STAGES];
    wire signed [31:0] im [0:STAGES];
    wire               valid [0:STAGES];
    assign re[0]    = flushing ? 32'd0 : s_tdata[31:0];
    assign im[0]    = flushing ? 32'd0 : s_tdata[63:32];
    assign valid[0] = taken || flushing;

    genvar s;
    generate
        for (s = 0; s < STAGES; s = s + 1) begin : stages
            panoply_fft_stage #(.SIZE(SIZE), .DELAY(SIZE >> (s + 1))) stage (
                .clk(clk), .clear(clear), .enable(enable),
                .in_re(re[s]), .in_im(im[s]), .in_valid(valid[s]),
                .out_re(re[s+1]), .out_im(im[s+1]), .out_valid(valid[s+1])
            );
        end
    endgenerate

    // Frames leave the stages with their places' bits reversed, and the memory in their order.
    function [STAGES-1:0] reversed(input [STAGES-1:0] place);
        integer i;
        for (i = 0; i < STAGES; i = i + 1) reversed[i] = place[STAGES-1-i];
    endfunction

    reg [63:0]       frames [0:2*SIZE-1];
    reg [STAGES:0]   skipped;
    reg [STAGES:0]   write_at, read_at;
    reg              reading;
    reg [31:0]       frames_in, frames_out;
    reg [STAGES-1:0] in_at;
    wire             real_output = valid[STAGES] && skipped == SIZE - 1;
    wire             frame_ends  = real_output && (&write_at[STAGES-1:0]);
    wire             read_ends   = reading && (&read_at[STAGES-1:0]);

    always @(posedge clk) begin
        if (clear) begin
            flushing   <= 1'b0;
            skipped    <= 0;
            write_at   <= 0;
            read_at    <= 0;
            reading    <= 1'b0;
            frames_in  <= 0;
            frames_out <= 0;
            in_at      <= 0;
            m_tvalid   <= 1'b0;
        end else if (enable) begin
            if (taken) begin
                in_at <= in_at + 1'b1;
                if (&in_at) frames_in <= frames_in + 1;
                if (s_tlast) flushing <= 1'b1;
            end
            if (valid[STAGES] && !real_output) skipped <= skipped + 1'b1;
            if (real_output) begin
                frames[{write_at[STAGES], reversed(write_at[STAGES-1:0])}] <= {im[STAGES], re[STAGES]};
                write_at <= write_at + 1'b1;
            end
            if (frame_ends) reading <= 1'b1;
            else if (read_ends) reading <= 1'b0;
            if (reading) read_at <= read_at + 1'b1;
            if (read_ends) frames_out <= frames_out + 1;
            m_tvalid <= reading && frames_out != frames_in;
            m_tlast  <= flushing && read_ends && frames_out + 1 == frames_in;
            m_tdata  <= frames[read_at];
        end
    end
endmodule
`default_nettype wire
