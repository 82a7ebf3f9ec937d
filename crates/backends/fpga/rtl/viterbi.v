// The likeliest bits of a frame of the convolutional code of rate 1/2 with 64 states: one step a clock forward, one a clock back.
//
// A beat has eight coded bits of one byte each, from 0 (a certain 0) to 255 (a certain 1), two for each step; the packet is one frame. An
// answer's beat has 64 decoded bits as bytes, the first bit of each byte highest. Of two paths alike the one from the lower state is taken.
`default_nettype none
module panoply_viterbi #(
    parameter STEPS_MAX = 4096
) (
    input  wire        clk,
    input  wire        clear,
    input  wire [6:0]  polynomial0,
    input  wire [6:0]  polynomial1,
    input  wire        any_start,
    input  wire        best_end,
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
    localparam STEP_BITS = $clog2(STEPS_MAX);
    localparam COST_BITS = $clog2(28 * STEPS_MAX) + 1;
    // Dearer than every path that begins in state 0.
    localparam [COST_BITS-1:0] UNREACHED = {1'b1, {(COST_BITS-1){1'b0}}};

    localparam FORWARD = 2'd0, CHOOSE = 2'd1, BACK = 2'd2, ANSWER = 2'd3;
    reg [1:0] phase;

    // Four steps of a beat wait here.
    reg [63:0] softs;
    reg [2:0]  left;
    reg        softs_last;
    assign s_tready = phase == FORWARD && (left == 3'd0 || (left == 3'd1 && !softs_last));
    wire [2:0] pairs = {2'd0, s_tkeep[1]} + {2'd0, s_tkeep[3]} + {2'd0, s_tkeep[5]} + {2'd0, s_tkeep[7]};

    // A byte counts as one of 15 levels.
    wire [11:0] scaled0 = {softs[7:0], 4'd0} - {4'd0, softs[7:0]};
    wire [11:0] scaled1 = {softs[15:8], 4'd0} - {4'd0, softs[15:8]};
    wire [3:0]  soft0   = scaled0[11:8];
    wire [3:0]  soft1   = scaled1[11:8];

    reg [COST_BITS-1:0]  costs [0:63];
    reg [63:0]           decisions [0:STEPS_MAX-1];
    reg [STEP_BITS:0]    steps;
    wire                 step = phase == FORWARD && left != 3'd0 && steps != STEPS_MAX;

    // The cost of a register's two coded bits.
    function [4:0] cost_of(input [6:0] register, input [6:0] p0, input [6:0] p1, input [3:0] s0, input [3:0] s1);
        cost_of = {1'b0, (^(register & p0)) ? 4'd14 - s0 : s0} + {1'b0, (^(register & p1)) ? 4'd14 - s1 : s1};
    endfunction

    reg [COST_BITS-1:0] next_costs [0:63];
    reg [63:0]          chosen;
    reg [COST_BITS-1:0] lower, upper;
    reg [6:0]           from_lower;
    integer             i;
    always @* begin
        chosen = 64'd0;
        for (i = 0; i < 64; i = i + 1) begin
            from_lower = {i[5], i[4:0], 1'b0};
            lower = costs[from_lower[5:0]] + {{(COST_BITS-5){1'b0}}, cost_of(from_lower, polynomial0, polynomial1, soft0, soft1)};
            upper = costs[from_lower[5:0] | 6'd1]
                  + {{(COST_BITS-5){1'b0}}, cost_of(from_lower | 7'd1, polynomial0, polynomial1, soft0, soft1)};
            chosen[i]     = upper < lower;
            next_costs[i] = upper < lower ? upper : lower;
        end
    end

    always @(posedge clk) if (step) decisions[steps[STEP_BITS-1:0]] <= chosen;

    // The way back: a step's decisions are read a clock before they are followed.
    reg [STEP_BITS:0]   unread;
    reg [STEP_BITS:0]   followed;
    reg                 read_valid;
    reg [63:0]          read;
    reg [5:0]           state, candidate;
    reg [COST_BITS-1:0] best;
    reg [63:0]          word;
    reg [63:0]          words [0:(STEPS_MAX+63)/64-1];
    reg [STEP_BITS:0]   word_at;
    wire [STEP_BITS:0]  follow = followed - 1'b1;
    wire [5:0]          bit_at = {follow[5:3], ~follow[2:0]};
    reg  [63:0]         with_bit;
    always @* begin
        with_bit = word;
        with_bit[bit_at] = state[5];
    end
    wire [STEP_BITS:0] last_word = (steps - 1'b1) >> 6;

    always @(posedge clk) begin
        if (phase == BACK && unread != 0) read <= decisions[unread[STEP_BITS-1:0] - 1'b1];
        if (phase == BACK && read_valid && follow[5:0] == 6'd0) words[follow[STEP_BITS-1:6]] <= with_bit;
    end

    integer j;
    always @(posedge clk) begin
        if (clear) begin
            phase      <= FORWARD;
            left       <= 3'd0;
            softs_last <= 1'b0;
            steps      <= 0;
            m_tvalid   <= 1'b0;
            read_valid <= 1'b0;
            for (j = 0; j < 64; j = j + 1) costs[j] <= (j == 0 || any_start) ? {COST_BITS{1'b0}} : UNREACHED;
        end else case (phase)
            FORWARD: begin
                if (step) begin
                    for (j = 0; j < 64; j = j + 1) costs[j] <= next_costs[j];
                    steps <= steps + 1'b1;
                end
                if (s_tvalid && s_tready) begin
                    softs      <= s_tdata;
                    left       <= pairs;
                    softs_last <= s_tlast;
                end else if (left != 3'd0) begin
                    softs <= softs >> 16;
                    left  <= left - 1'b1;
                end
                if (softs_last && left <= 3'd1) phase <= CHOOSE;
                candidate <= 6'd0;
                state     <= 6'd0;
                best      <= {COST_BITS{1'b1}};
            end
            CHOOSE: begin
                if (best_end && costs[candidate] < best) begin
                    best  <= costs[candidate];
                    state <= candidate;
                end
                candidate <= candidate + 1'b1;
                unread    <= steps;
                followed  <= steps;
                word      <= 64'd0;
                if (&candidate) phase <= BACK;
            end
            BACK: begin
                read_valid <= unread != 0;
                if (unread != 0) unread <= unread - 1'b1;
                if (read_valid) begin
                    followed <= follow;
                    word     <= follow[5:0] == 6'd0 ? 64'd0 : with_bit;
                    state    <= {state[4:0], read[state]};
                    if (follow == 0) phase <= ANSWER;
                end
                word_at <= 0;
            end
            ANSWER: if (!m_tvalid || m_tready) begin
                m_tvalid <= word_at <= last_word;
                m_tdata  <= words[word_at[STEP_BITS-7:0]];
                m_tlast  <= word_at == last_word;
                if (word_at <= last_word) word_at <= word_at + 1'b1;
            end
        endcase
    end
endmodule
`default_nettype wire
