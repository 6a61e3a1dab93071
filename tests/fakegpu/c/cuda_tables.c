/* The private tables that the CUDA runtime takes from its driver (cuGetExportTable), and the handshake over them.
 *
 * Which tables there are, what stands at which slot and how the handshake is computed are interface facts, known in public
 * from interoperability work (the notes of the ZLUDA project); the code is this project's own.  Slot 0 of a table is its length in bytes.
 */
#include "cuda.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static CUresult succeed(void) { return SUCCESS; }
static CUresult refuse(void) { return NOT_SUPPORTED; }

/* cudart: modules of the runtime's fat binaries, primary contexts */
static CUresult load(struct module **out, const void *wrapper) { return cuda_load_module(out, wrapper); }
static CUresult load_cached(struct module **out, const void *wrapper, void *a, void *b, unsigned c) { return cuda_load_module(out, wrapper); }
static CUresult load_by_header(const void *header, struct module **out, void *a, void *b, unsigned c) { return cuda_load_module(out, header); }
static CUresult primary(struct context **out, CUdevice device) {
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  *out = cuda_primary(device);
  return SUCCESS;
}

/* Values that the runtime keeps with a context */
struct local {
  void *key, *value;
  struct local *next;
};
static CUresult put_local(struct context *context, void *key, void *value, void *destructor) {
  if (!context) context = cuda_context();
  if (!context) return INVALID_CONTEXT;
  lock();
  struct local *one = context->locals;
  while (one && one->key != key) one = one->next;
  if (!one) {
    one = calloc(1, sizeof *one);
    one->key = key;
    one->next = context->locals;
    context->locals = one;
  }
  one->value = value;
  unlock();
  return SUCCESS;
}
static CUresult drop_local(struct context *context, void *key) {
  if (!context) context = cuda_context();
  if (!context) return INVALID_CONTEXT;
  lock();
  for (struct local **at = &context->locals; *at; at = &(*at)->next)
    if ((*at)->key == key) {
      struct local *gone = *at;
      *at = gone->next;
      free(gone);
      break;
    }
  unlock();
  return SUCCESS;
}
static CUresult get_local(void **value, struct context *context, void *key) {
  if (!context) context = cuda_context();
  if (!context) return INVALID_CONTEXT;
  lock();
  struct local *one = context->locals;
  while (one && one->key != key) one = one->next;
  if (one) *value = one->value;
  unlock();
  return one ? SUCCESS : INVALID_HANDLE;
}

/* Buffers for those who watch the runtime's calls; nobody does. */
static uint32_t first_buffer[1024], second_buffer[14];
static void first(void **out, size_t *size) {
  *out = first_buffer;
  *size = 1024;
}
static void second(void **out, size_t *size) {
  *out = second_buffer;
  *size = 14;
}
static CUresult check_context(void *context, uint32_t *state, const void **reason) {
  if (state) *state = 0;
  return SUCCESS;
}
static CUresult device_flag(unsigned char *out, CUdevice device) {
  if (out) *out = 0;
  return SUCCESS;
}

static CUresult shake_hands(uint32_t version, uint64_t seconds, uint64_t out[2]);
#define LENGTH(slots) (void *)(uintptr_t)((slots) * sizeof(void *))
#define S succeed
static void *cudart[13] = {LENGTH(13), load, primary, S, S, S, load_cached, S, load_by_header, S, S, S, S};
static void *tools_locals[4] = {LENGTH(4), S, S, S};
static void *hooks[7] = {LENGTH(7), S, first, S, S, S, second};
static void *context_locals[4] = {put_local, drop_local, get_local, S};
static void *context_bypass[2] = {LENGTH(2), refuse};
static void *heap[3] = {LENGTH(3), refuse, refuse};
static void *devices[26] = {LENGTH(26), S, S, S, S, refuse, S, S, S, S, S, S, S, device_flag, S, S, S, S, S, S, S, S, S, S, S, S};
static void *handshake[3] = {LENGTH(3), shake_hands, S};
static void *context_checks[4] = {LENGTH(4), S, check_context, S};
static void *cudart13[95] = {LENGTH(95)}; /* asked for by runtimes of CUDA 13; every slot succeeds */
#undef S

static const struct {
  const char *id; /* 16 bytes */
  void **table;
  const char *name;
} tables[] = {
    {"\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9", cudart, "cudart"},
    {"\x42\xd8\x5a\x81\x23\xf6\xcb\x47\x82\x98\xf6\xe7\x8a\x3a\xec\xdc", tools_locals, "locals of tools"},
    {"\xa0\x94\x79\x8c\x2e\x74\x2e\x74\x93\xf2\x08\x00\x20\x0c\x0a\x66", hooks, "hooks"},
    {"\xc6\x93\x33\x6e\x11\x21\xdf\x11\xa8\xc3\x68\xf3\x55\xd8\x95\x93", context_locals, "locals of contexts"},
    {"\x0c\xa5\x0b\x8c\x10\x04\x92\x9a\x89\xa7\xd0\xdf\x10\xe7\x72\x86", context_bypass, "contexts"},
    {"\x19\x5b\xcb\xf4\xd6\x7d\x02\x4a\xac\xc5\x1d\x29\xce\xa6\x31\xae", heap, "heap"},
    {"\xb1\x05\x41\xe1\xf7\xc7\xc7\x4a\x9f\x64\xf2\x23\xbe\x99\xf1\xe2", devices, "devices"},
    {"\xd4\x08\x20\x55\xbd\xe6\x70\x4b\x8d\x34\xba\x12\x3c\x66\xe1\xf2", handshake, "handshake"},
    {"\x26\x3e\x88\x60\x7c\xd2\x61\x43\x92\xf6\xbb\xd5\x00\x6d\xfa\x7e", context_checks, "checks of contexts"},
    {"\x21\x31\x8c\x60\x97\x14\x32\x48\x8c\xa6\x41\xff\x73\x24\xc8\xf2", cudart13, "cudart of CUDA 13"},
};

API CUresult cuGetExportTable(const void **out, const unsigned char id[16]) {
  ENTER("%02x%02x%02x%02x…", id[0], id[1], id[2], id[3]);
  for (size_t i = 1; i < sizeof cudart13 / sizeof *cudart13; i++) cudart13[i] = succeed;
  *out = NULL;
  for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
    if (!memcmp(tables[i].id, id, 16)) *out = tables[i].table;
  return *out ? SUCCESS : INVALID_VALUE;
}

/* MD2, RFC 1319 */
static const unsigned char pi_digits[256] = {
    41, 46, 67, 201, 162, 216, 124, 1, 61, 54, 84, 161, 236, 240, 6, 19, 98, 167, 5, 243, 192, 199, 115, 140, 152, 147,
    43, 217, 188, 76, 130, 202, 30, 155, 87, 60, 253, 212, 224, 22, 103, 66, 111, 24, 138, 23, 229, 18, 190, 78, 196, 214,
    218, 158, 222, 73, 160, 251, 245, 142, 187, 47, 238, 122, 169, 104, 121, 145, 21, 178, 7, 63, 148, 194, 16, 137, 11, 34,
    95, 33, 128, 127, 93, 154, 90, 144, 50, 39, 53, 62, 204, 231, 191, 247, 151, 3, 255, 25, 48, 179, 72, 165, 181, 209,
    215, 94, 146, 42, 172, 86, 170, 198, 79, 184, 56, 210, 150, 164, 125, 182, 118, 252, 107, 226, 156, 116, 4, 241, 69, 157,
    112, 89, 100, 113, 135, 32, 134, 91, 207, 101, 230, 45, 168, 2, 27, 96, 37, 173, 174, 176, 185, 246, 28, 70, 97, 105,
    52, 64, 126, 15, 85, 71, 163, 35, 221, 81, 175, 58, 195, 92, 249, 206, 186, 197, 234, 38, 44, 83, 13, 110, 133, 40,
    132, 9, 211, 223, 205, 244, 65, 129, 77, 82, 106, 220, 55, 200, 108, 193, 171, 250, 36, 225, 123, 8, 12, 189, 177, 74,
    120, 136, 149, 139, 227, 99, 232, 109, 233, 203, 213, 254, 59, 0, 29, 57, 242, 239, 183, 14, 102, 88, 208, 228, 166, 119,
    114, 248, 235, 117, 75, 10, 49, 68, 80, 180, 143, 237, 31, 26, 219, 153, 141, 51, 159, 17, 131, 20};

static void md2(const unsigned char *message, size_t size, unsigned char digest[16]) {
  unsigned char state[48] = {0}, checksum[16] = {0}, last = 0, block[16];
  size_t padded = size / 16 + 1;
  for (size_t n = 0; n <= padded; n++) {
    if (n < padded) {
      size_t have = size - n * 16 < 16 ? size - n * 16 : 16;
      memcpy(block, message + n * 16, have);
      memset(block + have, 16 - have, 16 - have);
      for (int i = 0; i < 16; i++) last = checksum[i] ^= pi_digits[block[i] ^ last];
    } else {
      memcpy(block, checksum, 16);
    }
    for (int i = 0; i < 16; i++) {
      state[16 + i] = block[i];
      state[32 + i] = block[i] ^ state[i];
    }
    unsigned char t = 0;
    for (int round = 0; round < 18; round++) {
      for (int i = 0; i < 48; i++) t = state[i] ^= pi_digits[t];
      t += round;
    }
  }
  memcpy(digest, state, 16);
}

/* HMAC (RFC 2104) over MD2 of what both sides know */
static const unsigned char key[16] = {0x14, 0x6a, 0xdd, 0xae, 0x53, 0xa9, 0xa7, 0x52, 0xaa, 0x08, 0x41, 0x36, 0x0b, 0xf5, 0x5a, 0x9f};

static size_t append(unsigned char *message, size_t at, const void *value, size_t size) {
  memcpy(message + at, value, size);
  return at + size;
}
static CUresult shake_hands(uint32_t version, uint64_t seconds, uint64_t out[2]) {
  if (version % 10 < 2) { /* runtimes that ask for a constant */
    out[0] = version % 10 ? 0x1841181C03CB675Cull : 0x3341181C03CB675Cull;
    out[1] = 0x8ED383AA1F4CD1E8ull;
    return SUCCESS;
  }
  unsigned char message[16 + 64 + 28 * FAKE_MAX_GPUS], outer[32];
  for (int i = 0; i < 16; i++) {
    message[i] = key[i] ^ 0x36;
    outer[i] = key[i] ^ 0x5c;
  }
  uint32_t driver = fake_number(0, "cuda"), process = getpid(), thread = (uint32_t)pthread_self();
  void *first_table = cudart, *second_table = handshake, *function = handshake[1];
  size_t size = 16;
  size = append(message, size, &driver, 4);
  size = append(message, size, &version, 4);
  size = append(message, size, &process, 4);
  size = append(message, size, &thread, 4);
  size = append(message, size, &first_table, 8);
  size = append(message, size, &second_table, 8);
  size = append(message, size, &function, 8);
  size = append(message, size, &seconds, 8);
  for (int i = 0; i < cuda_visible_count; i++) {
    struct fake_gpu *gpu = cuda_gpu(i);
    size = append(message, size, gpu->uuid, 16);
    size = append(message, size, &gpu->domain, 4);
    size = append(message, size, &gpu->bus, 4);
    size = append(message, size, &gpu->device, 4);
  }
  md2(message, size, outer + 16);
  md2(outer, sizeof outer, (unsigned char *)out);
  return SUCCESS;
}
