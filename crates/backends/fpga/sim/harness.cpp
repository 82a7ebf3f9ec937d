// The simulated card as a library with a C interface: registers, a stream in, a stream out, and a clock that the caller turns.
//
// Not thread-safe: one caller at a time for each card. Queues are bounded by the caller, who pushes no more than it wants kept.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <new>

#include "Vpanoply_top.h"
#include "verilated.h"

namespace {

// Clocks that a register access may take before the bus counts as dead.
constexpr int kAccessClocksMax = 64;

struct Card {
    VerilatedContext context;
    Vpanoply_top top{&context};
    std::deque<uint8_t> in, out;
    uint64_t clocks = 0;
    // Where not zero, streams pause at random.
    uint32_t stalls = 0;
    // The card answers no more, as one that lost its clock.
    bool dead = false;

    bool pauses() {
        if (stalls == 0) return false;
        stalls = stalls * 1664525u + 1013904223u;
        return (stalls >> 16) & 1;
    }

    void clock() {
        if (dead) return;
        // Values are given at the falling edge and looked at right before the rising one.
        bool const beat = in.size() >= 8;
        // A beat that was offered stays offered until it is taken.
        offered = beat && (offered || !pauses());
        top.s_tvalid = offered;
        if (offered) {
            uint64_t data = 0;
            for (int i = 0; i < 8; i++) data |= uint64_t(in[i]) << (8 * i);
            top.s_tdata = data;
        }
        top.m_tready = !pauses();
        top.clk = 0;
        top.eval();
        bool const taken = top.s_tvalid && top.s_tready, given = top.m_tvalid && top.m_tready;
        if (taken) {
            in.erase(in.begin(), in.begin() + 8);
            offered = false;
        }
        if (given) for (int i = 0; i < 8; i++) out.push_back(uint8_t(top.m_tdata >> (8 * i)));
        top.clk = 1;
        top.eval();
        clocks++;
    }

    void reset() {
        in.clear();
        out.clear();
        offered = false;
        top.rst = 1;
        for (int i = 0; i < 4; i++) clock();
        top.rst = 0;
    }

    bool offered = false;
};

Card* card_of(void* card) { return static_cast<Card*>(card); }

}  // namespace

extern "C" {

void* panoply_card_new() {
    Card* card = new (std::nothrow) Card;
    if (card) card->reset();
    return card;
}

void panoply_card_free(void* card) { delete card_of(card); }

// Both give 0, or 1 where the bus is dead.
int panoply_card_read(void* handle, uint32_t offset, uint32_t* value) {
    Card& card = *card_of(handle);
    card.top.arvalid = 1;
    card.top.araddr = offset;
    card.top.rready = 1;
    for (int i = 0; i < kAccessClocksMax; i++) {
        card.clock();
        card.top.arvalid = 0;
        if (!card.dead && card.top.rvalid) {
            *value = card.top.rdata;
            card.clock();
            return 0;
        }
    }
    return 1;
}

int panoply_card_write(void* handle, uint32_t offset, uint32_t value) {
    Card& card = *card_of(handle);
    card.top.awvalid = card.top.wvalid = 1;
    card.top.awaddr = offset;
    card.top.wdata = value;
    card.top.bready = 1;
    for (int i = 0; i < kAccessClocksMax; i++) {
        card.clock();
        card.top.awvalid = card.top.wvalid = 0;
        if (!card.dead && card.top.bvalid) {
            card.clock();
            return 0;
        }
    }
    return 1;
}

void panoply_card_push(void* handle, uint8_t const* bytes, size_t count) {
    Card& card = *card_of(handle);
    card.in.insert(card.in.end(), bytes, bytes + count);
}

// Turns the clock until so many bytes wait, at most so often. Gives the bytes that wait.
size_t panoply_card_run(void* handle, size_t bytes, uint64_t clocks_max) {
    Card& card = *card_of(handle);
    for (uint64_t i = 0; i < clocks_max && card.out.size() < bytes && !card.dead; i++) card.clock();
    return card.out.size();
}

// Takes what waits, at most so many bytes. Gives how many.
size_t panoply_card_pull(void* handle, uint8_t* bytes, size_t count) {
    Card& card = *card_of(handle);
    size_t const taken = card.out.size() < count ? card.out.size() : count;
    for (size_t i = 0; i < taken; i++) bytes[i] = card.out[i];
    card.out.erase(card.out.begin(), card.out.begin() + taken);
    return taken;
}

int panoply_card_interrupt(void* handle) { return card_of(handle)->top.irq; }
uint64_t panoply_card_clocks(void* handle) { return card_of(handle)->clocks; }
void panoply_card_stall(void* handle, uint32_t seed) { card_of(handle)->stalls = seed; }
void panoply_card_reset(void* handle) { card_of(handle)->reset(); }
void panoply_card_kill(void* handle) { card_of(handle)->dead = true; }

}  // extern "C"
