// y = 2x + 1 on two 32-bit integers a beat, with wrapping: the smallest core, and the pattern for others.
//
// A core takes one packet at a time from s_* and answers with one packet on m_*. `clear` is asserted between packets.
`default_nettype none
module panoply_affine (
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
    wire enable = !m_tvalid || m_tready;
    assign s_tready = enable;

    always @(posedge clk) begin
        if (clear) begin
            m_tvalid <= 1'b0;
        end else if (enable) begin
            m_tvalid <= s_tvalid;
            m_tlast  <= s_tlast;
            m_tdata  <= {s_tdata[62:32], 1'b1, s_tdata[30:0], 1'b1};
        end
    end
endmodule
`default_nettype wire
