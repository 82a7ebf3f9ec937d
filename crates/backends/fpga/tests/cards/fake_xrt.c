// XRT's C functions over a simulated card: what `libxrt_core` and `libxrt_coreutil` export, as far as the driver uses it, with failures on command.

#include <dlfcn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum fault { NONE, NO_CARD, NO_DEVICE, LOAD_FAILS, REGISTERS_FAIL, HANGS, RUN_FAILS, NO_MEMORY, IN_USE, SYNC_FAILS };

static int fault;
static int loaded;
static void* card;
static int (*card_read)(void*, uint32_t, uint32_t*);
static int (*card_write)(void*, uint32_t, uint32_t);
static void (*card_push)(void*, const uint8_t*, size_t);
static size_t (*card_run)(void*, size_t, uint64_t);
static size_t (*card_pull)(void*, uint8_t*, size_t);

struct buffer { size_t size; uint8_t* bytes; };
struct run { int is_out; struct buffer* buffer; uint32_t bytes; int state; };

// For the test: which simulation stands behind, and what goes wrong from now on. Gives 0 where the simulation is there.
int fake_xrt_card(const char* library) {
    void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return 1;
    card_read = (int (*)(void*, uint32_t, uint32_t*))dlsym(handle, "panoply_card_read");
    card_write = (int (*)(void*, uint32_t, uint32_t))dlsym(handle, "panoply_card_write");
    card_push = (void (*)(void*, const uint8_t*, size_t))dlsym(handle, "panoply_card_push");
    card_run = (size_t (*)(void*, size_t, uint64_t))dlsym(handle, "panoply_card_run");
    card_pull = (size_t (*)(void*, uint8_t*, size_t))dlsym(handle, "panoply_card_pull");
    card = ((void* (*)(void))dlsym(handle, "panoply_card_new"))();
    return card == NULL;
}
void fake_xrt_fault(int number) { fault = number; }

unsigned xclProbe(void) { return fault == NO_CARD ? 0 : 1; }

void* xrtDeviceOpen(unsigned index) { return fault == NO_DEVICE || index != 0 || !card ? NULL : &card; }
int xrtDeviceClose(void* device) { (void)device; return 0; }
int xrtDeviceLoadXclbinFile(void* device, const char* name) {
    (void)device;
    FILE* file = fault == LOAD_FAILS ? NULL : fopen(name, "rb");
    if (!file) return -22;
    fclose(file);
    loaded = 1;
    return 0;
}
int xrtDeviceGetXclbinUUID(void* device, unsigned char* uuid) {
    (void)device;
    memset(uuid, 0x42, 16);
    return loaded ? 0 : -22;
}

void* xrtDeviceToXclDevice(void* device) { return device; }
int xclGetSysfsPath(void* device, const char* part, const char* file, char* path, size_t size) {
    (void)device;
    return snprintf(path, size, "/sys/bus/pci/devices/0000:65:00.1/%s/%s", part, file) < (int)size ? 0 : -1;
}

static const char* const names[3] = {"panoply", "panoply_in", "panoply_out"};
void* xrtPLKernelOpen(void* device, const unsigned char* uuid, const char* name) {
    (void)device;
    for (int i = 0; i < 3; i++) if (uuid[0] == 0x42 && strcmp(name, names[i]) == 0) return (void*)&names[i];
    return NULL;
}
void* xrtPLKernelOpenExclusive(void* device, const unsigned char* uuid, const char* name) {
    return fault == IN_USE ? NULL : xrtPLKernelOpen(device, uuid, name);
}
int xrtKernelClose(void* kernel) { (void)kernel; return 0; }
int xrtKernelArgGroupId(void* kernel, int argument) { (void)kernel; return argument == 0 ? 1 : -1; }
int xrtKernelReadRegister(void* kernel, uint32_t offset, uint32_t* value) {
    (void)kernel;
    return fault == REGISTERS_FAIL ? -1 : card_read(card, offset, value);
}
int xrtKernelWriteRegister(void* kernel, uint32_t offset, uint32_t value) {
    (void)kernel;
    return fault == REGISTERS_FAIL ? -1 : card_write(card, offset, value);
}

void* xrtBOAlloc(void* device, size_t size, uint64_t flags, uint32_t group) {
    (void)device;
    if (fault == NO_MEMORY || flags != 0 || group != 1) return NULL;
    struct buffer* buffer = malloc(sizeof *buffer);
    buffer->size = size;
    buffer->bytes = calloc(1, size);
    return buffer;
}
int xrtBOFree(void* handle) {
    free(((struct buffer*)handle)->bytes);
    free(handle);
    return 0;
}
int xrtBOWrite(void* handle, const void* from, size_t size, size_t seek) {
    struct buffer* buffer = handle;
    if (size + seek > buffer->size) return -22;
    memcpy(buffer->bytes + seek, from, size);
    return 0;
}
int xrtBORead(void* handle, void* to, size_t size, size_t skip) {
    struct buffer* buffer = handle;
    if (size + skip > buffer->size) return -22;
    memcpy(to, buffer->bytes + skip, size);
    return 0;
}
int xrtBOSync(void* handle, int direction, size_t size, size_t offset) {
    struct buffer* buffer = handle;
    return (fault == SYNC_FAILS && direction == 1) || size + offset > buffer->size ? -5 : 0;
}

void* xrtRunOpen(void* kernel) {
    struct run* run = calloc(1, sizeof *run);
    run->is_out = kernel == (void*)&names[2];
    run->state = 1;
    return run;
}
int xrtRunSetArg(void* handle, int index, ...) {
    struct run* run = handle;
    va_list arguments;
    va_start(arguments, index);
    if (index == 0) run->buffer = va_arg(arguments, struct buffer*);
    if (index == 1) run->bytes = va_arg(arguments, uint32_t);
    va_end(arguments);
    return index > 1 ? -1 : 0;
}
int xrtRunStart(void* handle) {
    struct run* run = handle;
    if (!run->buffer || run->bytes > run->buffer->size) return -22;
    run->state = 3;
    if (!run->is_out) {
        card_push(card, run->buffer->bytes, run->bytes);
        run->state = 4;
    }
    return 0;
}
static int advance(struct run* run, uint64_t clocks) {
    if (run->state != 3 || fault == HANGS) return run->state;
    if (fault == RUN_FAILS) return run->state = 5;
    if (card_run(card, run->bytes, clocks) >= run->bytes) {
        card_pull(card, run->buffer->bytes, run->bytes);
        run->state = 4;
    }
    return run->state;
}
int xrtRunState(void* handle) { return advance(handle, 2000); }
int xrtRunWaitFor(void* handle, unsigned milliseconds) {
    for (unsigned i = 0; i < milliseconds; i++) if (advance(handle, 500) != 3) break;
    int const state = ((struct run*)handle)->state;
    return state == 3 ? 8 : state;
}
int xrtRunClose(void* handle) { free(handle); return 0; }
