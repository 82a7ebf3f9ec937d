// Kernels on the host: a block's threads are fibres of one OS thread, blocks run one after the other. The dialect's words for it
// are in host.h.
//
// 1. A fibre runs until it reaches a barrier or a shuffle, and then gives way to the next.
// 2. A barrier opens when every fibre that has not returned has arrived at it; a warp's barrier, when every lane has.
// 3. A round in which no fibre gets anywhere is a deadlock: lanes of one warp, or threads of one block, have parted ways
//    around a barrier. On a GPU that is undefined; here the launch says so and stops.
// 4. An address that is not a multiple of its type's alignment stops the launch too; the compiler adds the test.
// 5. The block's memory is filled with garbage before every block, so that nothing depends on what was there.
// 6. A kernel of somebody else's (PANOPLY_CHECKED) is compiled so that it calls the functions at the end of `emulation` before every
//    access, division and in every loop. An access out of bounds or misaligned, an endless loop, or a breach of rule 3 ends the launch with a message;
//    the unfinished fibres are abandoned. (A loop without a body makes no call, and is not ended.)

// Only C's headers: C++'s take longer to compile than most kernels.
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(PANOPLY_CHECKED)
#include <time.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

typedef int8_t i8;
typedef uint8_t u8;
typedef int16_t i16;
typedef uint16_t u16;
typedef int32_t i32;
typedef uint32_t u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#if !defined(PANOPLY_CHECKED)
#define UNCHECKED
#define BLOCK_MEMORY static
#elif defined(__clang__)
#define UNCHECKED __attribute__((no_sanitize("address", "coverage")))
#define BLOCK_MEMORY static __attribute__((section("panoply_memory")))
#else
#define UNCHECKED __attribute__((no_sanitize_address, no_sanitize_coverage))
#define BLOCK_MEMORY static __attribute__((section("panoply_memory")))
#endif
namespace emulation {

struct place { u32 x, y, z; };
static const size_t STACK_BYTES = 256 << 10;
static const u32 THREADS_MAX = 1024;

static place thread, block, block_size, grid_size;
static u64 *dynamic_shared;

struct barrier { u32 arrived = 0, members = 0; u64 generation = 0; };
struct fibre {
    char *stack = nullptr;
#if defined(__x86_64__)
    void *top = nullptr;
#else
    ucontext_t context;
#endif
    bool finished = false;
};

static fibre fibres[THREADS_MAX];
static barrier whole, warps[THREADS_MAX / WARP];
static u64 slots[THREADS_MAX];
static u32 current, threads;
static bool moved;
static void (*body)();

// The fault that ended the launch early; empty if there was none.
static char failure[512];
// Whether a fibre of a checked kernel runs now.
static bool inside;

#if defined(__x86_64__)
static void *scheduler;
extern "C" void panoply_emulation_switch(void **save, void *load);
asm(R"(
.text
.local panoply_emulation_switch
.type panoply_emulation_switch, @function
panoply_emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
UNCHECKED static void leave() { panoply_emulation_switch(&fibres[current].top, scheduler); }
static void enter(u32 index) { inside = true; panoply_emulation_switch(&scheduler, fibres[index].top); inside = false; }
static void prepare(fibre &f, void (*start)())
{
    char *end = f.stack + STACK_BYTES;
    void **top = (void **)((uintptr_t)end & ~(uintptr_t)15);
    *--top = nullptr;
    *--top = (void *)start;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    f.top = top;
}
#else
static ucontext_t scheduler;
UNCHECKED static void leave() { swapcontext(&fibres[current].context, &scheduler); }
static void enter(u32 index) { inside = true; swapcontext(&scheduler, &fibres[index].context); inside = false; }
static void prepare(fibre &f, void (*start)())
{
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = STACK_BYTES;
    f.context.uc_link = nullptr;
    makecontext(&f.context, start, 0);
}
#endif

static void select(u32 index)
{
    current = index;
    thread.x = index % block_size.x;
    thread.y = index / block_size.x % block_size.y;
    thread.z = index / block_size.x / block_size.y;
}

UNCHECKED static void open_if_complete(barrier &b)
{
    if (b.members != 0 && b.arrived == b.members) {
        b.arrived = 0;
        b.generation++;
        moved = true;
    }
}

UNCHECKED static void wait(barrier &b)
{
    u64 generation = b.generation;
    b.arrived++;
    moved = true;
    open_if_complete(b);
    while (b.generation == generation) leave();
}

UNCHECKED static inline void block_barrier() { wait(whole); }
UNCHECKED static inline void warp_barrier() { wait(warps[current / WARP]); }

UNCHECKED static void start()
{
    body();
    fibre &f = fibres[current];
    f.finished = true;
    moved = true;
    whole.members--;
    warps[current / WARP].members--;
    open_if_complete(whole);
    open_if_complete(warps[current / WARP]);
    for (;;) leave();
}

static void run_block()
{
    threads = block_size.x * block_size.y * block_size.z;
    if (threads == 0 || threads > THREADS_MAX) { fprintf(stderr, "a block of %u threads\n", threads); abort(); }
    whole = barrier();
    whole.members = threads;
    for (u32 w = 0; w < THREADS_MAX / WARP; w++) warps[w] = barrier();
    for (u32 i = 0; i < threads; i++) {
        fibre &f = fibres[i];
        if (!f.stack) f.stack = (char *)malloc(STACK_BYTES);
        f.finished = false;
        prepare(f, start);
        warps[i / WARP].members++;
    }
    for (u32 left = threads; left > 0;) {
        moved = false;
        left = 0;
        for (u32 i = 0; i < threads; i++) {
            if (fibres[i].finished) continue;
            select(i);
            enter(i);
            if (failure[0]) return;
            left += !fibres[i].finished;
        }
        if (left > 0 && !moved) {
            snprintf(failure, sizeof failure, "deadlock: threads of block %u,%u,%u have parted ways around a barrier", block.x, block.y, block.z);
#if !defined(PANOPLY_CHECKED)
            fprintf(stderr, "%s\n", failure);
            abort();
#endif
            return;
        }
    }
}

template <class V> UNCHECKED static V exchange(V value, u32 from)
{
    u32 base = current / WARP * WARP;
    u64 bits = 0;
    memcpy(&bits, &value, sizeof value);
    slots[current] = bits;
    warp_barrier();
    u64 other = slots[base + (from % WARP)];
    warp_barrier();
    V result;
    memcpy(&result, &other, sizeof result);
    return result;
}

template <size_t... I> struct sequence {};
template <size_t N, size_t... I> struct count_up : count_up<N - 1, N - 1, I...> {};
template <size_t... I> struct count_up<0, I...> { typedef sequence<I...> type; };

template <class... A> struct call {
    static void (*function)(A...);
    static void **arguments;
    template <size_t... I> UNCHECKED static void with(sequence<I...>) { function(*(A *)arguments[I]...); }
    UNCHECKED static void run() { with(typename count_up<sizeof...(A)>::type()); }
    static void launch(void (*f)(A...), void **args)
    {
        function = f;
        arguments = args;
        body = run;
    }
};
template <class... A> void (*call<A...>::function)(A...);
template <class... A> void **call<A...>::arguments;
template <class... A> static void bind(void (*f)(A...), void **args) { call<A...>::launch(f, args); }

// A range of memory that a checked kernel may access.
struct range { u64 start, bytes; bool writable; };

#if defined(PANOPLY_CHECKED)
static const range *ranges;
static u64 range_count, shared_size, deadline_ns, time_max_ns, steps;
static const size_t STACK_MARGIN_BYTES = 16 << 10;
static const u64 STEPS_BETWEEN_LOOKS = 1 << 14;

// The linker's names: the block's memory, and this library from its first byte to its last.
extern "C" char __start_panoply_memory[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_panoply_memory[] __attribute__((weak, visibility("hidden")));
extern "C" char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

UNCHECKED static u64 now_ns()
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000 + (u64)now.tv_nsec;
}

// Ends the launch; the fibre is never entered again. The message names its thread.
UNCHECKED static void stop_here(const char *what)
{
    snprintf(failure, sizeof failure, "thread %u,%u,%u of block %u,%u,%u %s", thread.x, thread.y, thread.z, block.x, block.y, block.z, what);
    for (;;) leave();
}

UNCHECKED static bool lies_in(u64 place, u64 bytes, u64 start, u64 size)
{
    return place >= start && bytes <= size && place - start <= size - bytes;
}

UNCHECKED static void refuse(u64 place, u64 bytes, const char *did)
{
    char what[256];
    u64 nearest = range_count, least = 1 << 20;
    for (u64 i = 0; i < range_count; i++) {
        u64 end = ranges[i].start + ranges[i].bytes;
        u64 far = place < ranges[i].start ? ranges[i].start - place : place - (place < end ? place : end);
        if (far < least) least = far, nearest = i;
    }
    if (nearest < range_count)
        snprintf(what, sizeof what, "%s %llu bytes at byte %lld of argument %llu, which has %llu", did, bytes, (i64)(place - ranges[nearest].start), nearest, ranges[nearest].bytes);
    else
        snprintf(what, sizeof what, "%s %llu bytes at %#llx, which lie in none of its arguments", did, bytes, place);
    stop_here(what);
}

UNCHECKED static void touch(u64 place, u64 bytes, bool writes)
{
    if (!inside) return;
    for (u64 i = 0; i < range_count; i++) {
        if (!lies_in(place, bytes, ranges[i].start, ranges[i].bytes)) continue;
        if (writes && !ranges[i].writable) refuse(place, bytes, "wrote to an input:");
        return;
    }
    u64 memory = (u64)__start_panoply_memory, image = (u64)__ehdr_start;
    if (lies_in(place, bytes, (u64)fibres[current].stack, STACK_BYTES)) return;
    if (lies_in(place, bytes, (u64)dynamic_shared, shared_size)) return;
    if (memory && lies_in(place, bytes, memory, (u64)__stop_panoply_memory - memory)) return;
    if (!writes && lies_in(place, bytes, image, (u64)_end - image)) return;
    refuse(place, bytes, writes ? "wrote" : "read");
}

UNCHECKED static void touch_aligned(u64 place, u64 bytes, bool writes)
{
    if (inside && place % bytes != 0) refuse(place, bytes, writes ? "wrote, misaligned," : "read, misaligned,");
    touch(place, bytes, writes);
}

extern "C" {
#define TOUCH(bytes)                                                                                             \
    UNCHECKED void __asan_load##bytes##_noabort(u64 place) { emulation::touch_aligned(place, bytes, false); }    \
    UNCHECKED void __asan_store##bytes##_noabort(u64 place) { emulation::touch_aligned(place, bytes, true); }
TOUCH(1) TOUCH(2) TOUCH(4) TOUCH(8) TOUCH(16)
#undef TOUCH
UNCHECKED void __asan_loadN_noabort(u64 place, u64 bytes) { emulation::touch(place, bytes, false); }
UNCHECKED void __asan_storeN_noabort(u64 place, u64 bytes) { emulation::touch(place, bytes, true); }
UNCHECKED void __asan_handle_no_return() {}
// A GPU gives some number; the host would end the process.
UNCHECKED void __ubsan_handle_divrem_overflow(void *, void *, void *) { emulation::stop_here("divided by zero"); }
UNCHECKED void __sanitizer_cov_trace_pc()
{
    using namespace emulation;
    if (!inside) return;
    if ((char *)__builtin_frame_address(0) < fibres[current].stack + STACK_MARGIN_BYTES) stop_here("has used up its stack");
    if (++steps % STEPS_BETWEEN_LOOKS == 0 && now_ns() > deadline_ns) {
        char what[64];
        snprintf(what, sizeof what, "has not ended after %llu ms", time_max_ns / 1000000);
        stop_here(what);
    }
}
}

static void prepare_checks(const range *given, u64 count, u64 shared_bytes, u64 time_max)
{
    ranges = given, range_count = count, shared_size = shared_bytes, time_max_ns = time_max;
    deadline_ns = now_ns() + time_max;
}
#else
static void misaligned(int)
{
    fprintf(stderr, "misaligned: a thread of block %u,%u,%u used an address that does not fit its type\n", block.x, block.y, block.z);
    abort();
}

static void prepare_checks(const range *, u64, u64, u64)
{
    // Which of the two a trap raises is up to the processor.
    signal(SIGILL, misaligned);
    signal(SIGTRAP, misaligned);
}
#endif

static void run_grid(const u32 *grid, const u32 *size, u64 shared_bytes)
{
    failure[0] = 0;
    grid_size = place{grid[0], grid[1], grid[2]};
    block_size = place{size[0], size[1], size[2]};
    dynamic_shared = (u64 *)aligned_alloc(128, (shared_bytes + 16 + 127) / 128 * 128);
    for (block.z = 0; block.z < grid_size.z; block.z++)
        for (block.y = 0; block.y < grid_size.y; block.y++)
            for (block.x = 0; block.x < grid_size.x; block.x++) {
                memset(dynamic_shared, 0xcd, shared_bytes + 16);
                run_block();
                if (failure[0]) goto end;
            }
end:
    free(dynamic_shared);
}

} // namespace emulation

#define PANOPLY_HOST_ENTRY(name)                                                                        \
    extern "C" const char *panoply_launch(void **arguments, const u32 *grid, const u32 *block, u64 shared, \
                                          const emulation::range *ranges, u64 count, u64 time_max)      \
    {                                                                                                   \
        emulation::bind(name, arguments);                                                               \
        emulation::prepare_checks(ranges, count, shared, time_max);                                     \
        emulation::run_grid(grid, block, shared);                                                       \
        return emulation::failure[0] ? emulation::failure : nullptr;                                    \
    }
