// All cores behind one register file, one stream in and one stream out, as XDMA and XRT shells give them.
//
// A packet is a header beat (magic, tag, bytes of what follows) and its payload in whole beats. The chosen core takes one packet at a time; its
// answer is a header beat (magic, the packet's tag, clocks from its first payload beat to the answer's first) and the core's beats. Lengths
// stand in the header, so that shells without TLAST and TKEEP serve as well.
//
// While the control register's reset bit is set, the input is taken and thrown away, and nothing is answered.
`include "generated.vh"
`default_nettype none
module panoply_top #(
    // Which cores are built: a bit for each kind.
    parameter [31:0] CORES = 32'h1F
) (
    input  wire        clk,
    input  wire        rst,
    input  wire        awvalid,
    output wire        awready,
    input  wire [11:0] awaddr,
    input  wire        wvalid,
    output wire        wready,
    input  wire [31:0] wdata,
    output wire        bvalid,
    input  wire        bready,
    input  wire        arvalid,
    output wire        arready,
    input  wire [11:0] araddr,
    output wire        rvalid,
    input  wire        rready,
    output wire [31:0] rdata,
    input  wire [63:0] s_tdata,
    input  wire        s_tvalid,
    output wire        s_tready,
    output wire [63:0] m_tdata,
    output wire        m_tvalid,
    input  wire        m_tready,
    output wire        m_tlast,
    output wire        irq
);
    wire [31:0] control, acknowledged, viterbi_code, tap_value;
    wire [15:0] tap_index;
    wire        tap_write;
    reg  [31:0] packets_in, packets_out, beats_in, beats_out, cycles, answers;
    wire        reset = rst || control[`CONTROL_RESET_BIT];
    wire [3:0]  chosen = control[3:0];

    localparam HEADER = 2'd0, PAYLOAD = 2'd1, DRAIN = 2'd2, BROKEN = 2'd3;
    reg  [1:0]  phase;
    reg  [15:0] tag;
    reg  [31:0] left;
    wire        answer_waits = answers != acknowledged;
    wire [31:0] status = {29'd0, phase == BROKEN, answer_waits, phase == PAYLOAD || phase == DRAIN};
    assign irq = control[`CONTROL_INTERRUPT_BIT] && answer_waits;

    panoply_registers registers (
        .clk(clk), .rst(rst), .awvalid(awvalid), .awready(awready), .awaddr(awaddr), .wvalid(wvalid), .wready(wready),
        .wdata(wdata), .bvalid(bvalid), .bready(bready), .arvalid(arvalid), .arready(arready), .araddr(araddr),
        .rvalid(rvalid), .rready(rready), .rdata(rdata), .cores(CORES), .status(status), .packets_in(packets_in),
        .packets_out(packets_out), .beats_in(beats_in), .beats_out(beats_out), .cycles(cycles), .answers(answers),
        .control(control), .acknowledged(acknowledged), .viterbi_code(viterbi_code), .tap_write(tap_write),
        .tap_index(tap_index), .tap_value(tap_value)
    );

    // To the core: its beats with how many bytes count, and the last.
    wire       last = left <= 32'd8;
    wire [7:0] keep = last ? (8'hFF >> (4'd8 - left[3:0])) : 8'hFF;
    wire       to_core = phase == PAYLOAD && s_tvalid;
    wire       clear = reset || phase == HEADER || phase == BROKEN;

    localparam KINDS = 5;
    wire [KINDS-1:0] core_ready, core_valid, core_last;
    wire [63:0]      core_data [0:KINDS-1];
    wire [KINDS-1:0] select = {chosen == `CORE_VITERBI, chosen == `CORE_FFT, chosen == `CORE_FIR, chosen == `CORE_CRC32, chosen == `CORE_AFFINE};
    wire             present = chosen < KINDS && CORES[chosen];
    wire             out_ready;

    generate
        if (CORES[`CORE_AFFINE]) begin : affine
            panoply_affine core (.clk(clk), .clear(clear), .s_tdata(s_tdata), .s_tvalid(to_core && select[0]), .s_tready(core_ready[0]),
                .s_tlast(last), .m_tdata(core_data[0]), .m_tvalid(core_valid[0]), .m_tready(out_ready), .m_tlast(core_last[0]));
        end else begin : no_affine
            assign {core_ready[0], core_valid[0], core_last[0], core_data[0]} = 67'd0;
        end
        if (CORES[`CORE_CRC32]) begin : crc32
            panoply_crc32 core (.clk(clk), .clear(clear), .s_tdata(s_tdata), .s_tkeep(keep), .s_tvalid(to_core && select[1]),
                .s_tready(core_ready[1]), .s_tlast(last), .m_tdata(core_data[1]), .m_tvalid(core_valid[1]), .m_tready(out_ready),
                .m_tlast(core_last[1]));
        end else begin : no_crc32
            assign {core_ready[1], core_valid[1], core_last[1], core_data[1]} = 67'd0;
        end
        if (CORES[`CORE_FIR]) begin : fir
            panoply_fir #(.TAPS(`FIR_TAPS), .WIDTH(`FIR_WIDTH)) core (.clk(clk), .clear(clear), .tap_write(tap_write),
                .tap_index(tap_index), .tap_value(tap_value[`FIR_WIDTH-1:0]), .s_tdata(s_tdata), .s_tvalid(to_core && select[2]),
                .s_tready(core_ready[2]), .s_tlast(last), .m_tdata(core_data[2]), .m_tvalid(core_valid[2]), .m_tready(out_ready),
                .m_tlast(core_last[2]));
        end else begin : no_fir
            assign {core_ready[2], core_valid[2], core_last[2], core_data[2]} = 67'd0;
        end
        if (CORES[`CORE_FFT]) begin : fft
            panoply_fft #(.SIZE(`FFT_SIZE)) core (.clk(clk), .clear(clear), .s_tdata(s_tdata), .s_tvalid(to_core && select[3]),
                .s_tready(core_ready[3]), .s_tlast(last), .m_tdata(core_data[3]), .m_tvalid(core_valid[3]), .m_tready(out_ready),
                .m_tlast(core_last[3]));
        end else begin : no_fft
            assign {core_ready[3], core_valid[3], core_last[3], core_data[3]} = 67'd0;
        end
        if (CORES[`CORE_VITERBI]) begin : viterbi
            panoply_viterbi #(.STEPS_MAX(`VITERBI_STEPS_MAX)) core (.clk(clk), .clear(clear), .polynomial0(viterbi_code[6:0]),
                .polynomial1(viterbi_code[14:8]), .any_start(viterbi_code[16]), .best_end(viterbi_code[17]), .s_tdata(s_tdata),
                .s_tkeep(keep), .s_tvalid(to_core && select[4]), .s_tready(core_ready[4]), .s_tlast(last), .m_tdata(core_data[4]),
                .m_tvalid(core_valid[4]), .m_tready(out_ready), .m_tlast(core_last[4]));
        end else begin : no_viterbi
            assign {core_ready[4], core_valid[4], core_last[4], core_data[4]} = 67'd0;
        end
    endgenerate

    wire        ready      = |(core_ready & select);
    wire        out_valid  = |(core_valid & select);
    wire        out_last   = |(core_last & select);
    wire [63:0] out_data   = core_data[present ? chosen[2:0] : 3'd0];

    // Input: a header, its payload, and then nothing until the answer is out.
    wire header_is_right = s_tdata[63:48] == `PACKET_MAGIC && s_tdata[31:0] != 32'd0 && present;
    assign s_tready = reset || phase == HEADER || phase == BROKEN || (phase == PAYLOAD && ready);
    wire taken = s_tvalid && s_tready;

    // Output: a header when the core's first beat is there, then the core's beats.
    reg         in_body, begun;
    reg  [31:0] latency;
    assign m_tvalid  = !reset && out_valid && (phase == PAYLOAD || phase == DRAIN);
    assign m_tdata   = in_body ? out_data : {`ANSWER_MAGIC, tag, latency};
    assign m_tlast   = in_body && out_last;
    assign out_ready = in_body && m_tready;
    wire   given     = m_tvalid && m_tready;
    wire   answered  = given && m_tlast;

    always @(posedge clk) begin
        cycles <= rst ? 32'd0 : cycles + 1'b1;
        if (reset) begin
            phase     <= HEADER;
            in_body   <= 1'b0;
            begun     <= 1'b0;
            {packets_in, packets_out, beats_in, beats_out, answers} <= 160'd0;
        end else begin
            if (taken) beats_in <= beats_in + 1'b1;
            if (given) beats_out <= beats_out + 1'b1;
            case (phase)
                HEADER: if (taken) begin
                    phase   <= header_is_right ? PAYLOAD : BROKEN;
                    tag     <= s_tdata[47:32];
                    left    <= s_tdata[31:0];
                    latency <= 32'd0;
                    begun   <= 1'b0;
                    in_body <= 1'b0;
                    if (header_is_right) packets_in <= packets_in + 1'b1;
                end
                PAYLOAD: if (taken) begin
                    left <= left - 32'd8;
                    if (last) phase <= DRAIN;
                end
                DRAIN: if (answered) begin
                    phase       <= HEADER;
                    packets_out <= packets_out + 1'b1;
                end
                default: ;
            endcase
            // Clocks count from the one on which the first payload beat is taken.
            if (phase == PAYLOAD || phase == DRAIN) begin
                if (taken) begun <= 1'b1;
                if ((taken || begun) && !out_valid && answers_mine == 1'b0) latency <= latency + 1'b1;
                if (out_valid && !answers_mine) answers <= answers + 1'b1;
                if (given && !m_tlast) in_body <= 1'b1;
            end
        end
    end

    // The answer of the packet under way was announced.
    reg answers_mine;
    always @(posedge clk) answers_mine <= !(reset || phase == HEADER) && (answers_mine || ((phase == PAYLOAD || phase == DRAIN) && out_valid));
endmodule
`default_nettype wire
