// CRC-32/ISO-HDLC of a packet, up to eight bytes a clock; the answer is one beat. The bytes are registered before the sum.
//
// The sum is linear in its bits and the bytes': each bit of the next sum is a parity, by the masks of `crc32.vh`, for each number of bytes.
`default_nettype none
module panoply_crc32 (
    input  wire        clk,
    input  wire        clear,
    input  wire [63:0] s_tdata,
    input  wire [7:0]  s_tkeep,
    input  wire        s_tvalid,
    output wire        s_tready,
    input  wire        s_tlast,
    output reg  [63:0] m_tdata,
    output reg         m_tvalid,
    input  wire        m_tready,
    output reg         m_tlast
);
    `include "crc32.vh"
    wire enable = !m_tvalid || m_tready;
    assign s_tready = enable;

    reg [63:0] bytes;
    reg [7:0]  keep;
    reg        bytes_valid, bytes_last;
    reg [31:0] sum;
    wire [31:0] next = crc32_next(sum, bytes, keep);

    always @(posedge clk) begin
        if (clear) begin
            bytes_valid <= 1'b0;
            m_tvalid    <= 1'b0;
            sum         <= 32'hFFFFFFFF;
        end else if (enable) begin
            bytes       <= s_tdata;
            keep        <= s_tkeep;
            bytes_last  <= s_tlast;
            bytes_valid <= s_tvalid;
            if (bytes_valid) sum <= next;
            m_tvalid <= bytes_valid && bytes_last;
            m_tlast  <= 1'b1;
            m_tdata  <= {32'd0, ~next};
        end
    end
endmodule
`default_nettype wire
