// The register file behind AXI4-Lite: one access at a time, answered on the clock after it. The map is in `generated.vh`.
`include "generated.vh"
`default_nettype none
module panoply_registers (
    input  wire        clk,
    input  wire        rst,
    input  wire        awvalid,
    output wire        awready,
    input  wire [11:0] awaddr,
    input  wire        wvalid,
    output wire        wready,
    input  wire [31:0] wdata,
    output reg         bvalid,
    input  wire        bready,
    input  wire        arvalid,
    output wire        arready,
    input  wire [11:0] araddr,
    output reg         rvalid,
    input  wire        rready,
    output reg  [31:0] rdata,
    // Inputs from the core and the streams.
    input  wire [31:0] cores,
    input  wire [31:0] status,
    input  wire [31:0] packets_in,
    input  wire [31:0] packets_out,
    input  wire [31:0] beats_in,
    input  wire [31:0] beats_out,
    input  wire [31:0] cycles,
    input  wire [31:0] answers,
    // Outputs set by the driver.
    output reg  [31:0] control,
    output reg  [31:0] acknowledged,
    output reg  [31:0] viterbi_code,
    output reg         tap_write,
    output reg  [15:0] tap_index,
    output reg  [31:0] tap_value
);
    reg [31:0] session;
    reg [15:0] next_tap;

    wire write = awvalid && wvalid && !bvalid;
    assign awready = write;
    assign wready  = write;
    assign arready = arvalid && !rvalid;

    always @(posedge clk) begin
        tap_write <= 1'b0;
        if (rst) begin
            {control, session, acknowledged, viterbi_code} <= 128'd0;
            next_tap <= 16'd0;
            bvalid   <= 1'b0;
        end else begin
            if (bvalid && bready) bvalid <= 1'b0;
            if (write) begin
                bvalid <= 1'b1;
                case (awaddr)
                    `REG_SESSION:       session      <= wdata;
                    `REG_CONTROL:       control      <= wdata;
                    `REG_ACKNOWLEDGED:  acknowledged <= wdata;
                    `REG_VITERBI_CODE:  viterbi_code <= wdata;
                    `REG_FIR_TAP_INDEX: next_tap     <= wdata[15:0];
                    `REG_FIR_TAP_VALUE: begin
                        tap_write <= 1'b1;
                        tap_index <= next_tap;
                        tap_value <= wdata;
                        next_tap  <= next_tap + 1'b1;
                    end
                    default: ;
                endcase
                // A reset by the driver clears the set-up too.
                if (awaddr == `REG_CONTROL && wdata[`CONTROL_RESET_BIT]) begin
                    {session, acknowledged, viterbi_code} <= 96'd0;
                    next_tap <= 16'd0;
                end
            end
        end
    end

    always @(posedge clk) begin
        if (rst) rvalid <= 1'b0;
        else begin
            if (rvalid && rready) rvalid <= 1'b0;
            if (arready) begin
                rvalid <= 1'b1;
                case (araddr)
                    `REG_IDENT:             rdata <= `IDENT;
                    `REG_VERSION:           rdata <= `VERSION;
                    `REG_CORES:             rdata <= cores;
                    `REG_SESSION:           rdata <= session;
                    `REG_CONTROL:           rdata <= control;
                    `REG_STATUS:            rdata <= status;
                    `REG_PACKETS_IN:        rdata <= packets_in;
                    `REG_PACKETS_OUT:       rdata <= packets_out;
                    `REG_BEATS_IN:          rdata <= beats_in;
                    `REG_BEATS_OUT:         rdata <= beats_out;
                    `REG_CYCLES:            rdata <= cycles;
                    `REG_ANSWERS:           rdata <= answers;
                    `REG_ACKNOWLEDGED:      rdata <= acknowledged;
                    `REG_FIR_TAPS:          rdata <= `FIR_TAPS;
                    `REG_FIR_WIDTH:         rdata <= `FIR_WIDTH;
                    `REG_FIR_TAP_INDEX:     rdata <= {16'd0, next_tap};
                    `REG_FFT_SIZE:          rdata <= `FFT_SIZE;
                    `REG_FFT_WIDTH:         rdata <= `FFT_WIDTH;
                    `REG_VITERBI_STEPS_MAX: rdata <= `VITERBI_STEPS_MAX;
                    `REG_VITERBI_CODE:      rdata <= viterbi_code;
                    default:                rdata <= 32'd0;
                endcase
            end
        end
    end
endmodule
`default_nettype wire
