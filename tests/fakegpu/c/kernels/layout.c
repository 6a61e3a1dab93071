/* The layouts, and what NCCL's numbers of device functions mean. */
#define _GNU_SOURCE
#include "layout.h"
#include "reduce.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* clang-format off */
static const struct layout layouts[] = {
  /* versions | list types all_gather_v gather_algorithms function_bits plain | abort channels consumed | channel: size index tree
       | conn: size step_size fifo step | fifo | work: size receive counts argument | early */
  {21803, 21803, 1, 10, 0, 3,  0, 0,  32, 40, -1,  240, 24, 32,   96, -1, 64,  80,    0, 56, 16, 32,  48, 1},
  {22003, 22005, 1, 10, 0, 3,  0, 0,  56, 64, -1,  272, 24, 32,  144, -1, 88,  96,   24, 56, 16, 40, 32, 0},
  {22105, 22105, 1, 10, 0, 3,  0, 0,  56, 64, -1,  368, 24, 32,  152, 72, 96, 104,   24, 56, 16, 40, 32, 0},
  {22203, 22203, 0, 10, 0, 3, 15, 0,  48, 56, 32,  368, 24, 32,  152, 72, 96, 104,   24, 64,  8, 24, 56, 0},
  {22304, 22304, 0, 10, 0, 4, 15, 0,  56, 64, 40,  368, 24, 32,  152, 72, 96, 104,   24, 96,  8, 56, 88, 0},
  {22403, 22403, 0, 12, 0, 4, 15, 0,  56, 64, 40,  368, 24, 32,  152, 72, 96, 104,   24, 96,  8, 56, 88, 0},
  {22501, 22501, 0, 12, 0, 4, 15, 0,  56, 64, 40,  352, 24, 32,  152, 72, 96, 104,   24, 96,  8, 56, 88, 0},
  {22602, 22606, 0, 12, 0, 4, 15, 0,  56, 64, 40,  368, 24, 32,  152, 72, 96, 104,   24, 96,  8, 56, 88, 0},
  {22703, 22707, 0, 12, 0, 4, 15, 0,  48, 56, -1,  368, 24, 32,  152, 72, 96, 104,   24, 96,  8, 56, 88, 0},
  {22803, 22809, 0, 12, 0, 4, 15, 1,  48, 56, -1,  368, 24, 32,  152, 72, 96, 104,   24, 96,  8, 56, 88, 0},
  {22902, 22907, 0, 12, 1, 4, 15, 1,  48, 56, -1,  368, 32, 40,  152, 72, 96, 104,   24, 96,  8, 56, 88, 0},
  {23003, 23007, 0, 12, 1, 4, 15, 1,  48, 56, -1,  368, 32, 40,  152, 72, 96, 104,  24, 128, 24, 80, 112, 0},
  {23203, 23203, 0, 12, 1, 4, 11, 1,  48, 56, -1,  368, 32, 40,  152, 72, 96, 104,   32, 96,  8, 56, 88, 0},
};
/* clang-format on */
enum { ROWS = sizeof layouts / sizeof *layouts };

struct library {
  char path[512];
  const int *rows; /* ncclDevFuncRowToId */
  size_t row_count;
};
static struct library nccl;
static int nccl_version;

/* ncclDevFuncRowToId is a local symbol: in the file's table of symbols, not among what the loader knows. */
static void read_rows(struct dl_phdr_info *info, const char *file, size_t size) {
  const Elf64_Ehdr *header = (const void *)file;
  const Elf64_Shdr *sections = (const void *)(file + header->e_shoff);
  if (header->e_shoff + header->e_shnum * sizeof *sections > size) return;
  for (int i = 0; i < header->e_shnum; i++) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const Elf64_Sym *symbols = (const void *)(file + sections[i].sh_offset);
    const char *names = file + sections[sections[i].sh_link].sh_offset;
    for (size_t n = 0; n < sections[i].sh_size / sizeof *symbols; n++) {
      if (strcmp(names + symbols[n].st_name, "ncclDevFuncRowToId")) continue;
      nccl.rows = (const int *)(info->dlpi_addr + symbols[n].st_value);
      nccl.row_count = symbols[n].st_size / sizeof(int);
    }
  }
}

static int look(struct dl_phdr_info *info, size_t unused, void *data) {
  struct stat state;
  if (!strstr(info->dlpi_name, "libnccl.so")) return 0;
  snprintf(nccl.path, sizeof nccl.path, "%s", info->dlpi_name);
  int fd = open(nccl.path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 1;
  if (!fstat(fd, &state)) {
    char *file = mmap(NULL, state.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file != MAP_FAILED) {
      read_rows(info, file, state.st_size);
      munmap(file, state.st_size);
    }
  }
  close(fd);
  return 1;
}

static void find_nccl(void) {
  if (!dl_iterate_phdr(look, NULL)) return;
  void *handle = dlopen(nccl.path, RTLD_NOW | RTLD_NOLOAD);
  int (*get_version)(int *) = handle ? (int (*)(int *))dlsym(handle, "ncclGetVersion") : NULL;
  if (get_version) get_version(&nccl_version);
}

const struct layout *layout_of_nccl(int *version) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, find_nccl);
  *version = nccl_version;
  for (int i = 0; i < ROWS; i++)
    if (layouts[i].from <= nccl_version && nccl_version <= layouts[i].last) return &layouts[i];
  return NULL;
}

/* Rows as ncclDevFuncId() (device.h) counts them; more than one row may have the same number, the functions are then the same. */
static const enum algorithm GATHERING[] = {RING, COLLNET_DIRECT, NVLS, PAT};
enum { REDUCTIONS = 5, REDUCING_ALGORITHMS = 6 }; /* ncclNumDevRedOps; tree to NVLS tree */

static int row_is(size_t *row, int number) { return nccl.rows[(*row)++] == number; }

static int reducing(size_t *row, int number, enum collective collective, const enum algorithm *of, int algorithms, int types,
                    struct function *out) {
  for (int reduction = 0; reduction < REDUCTIONS; reduction++)
    for (int type = 0; type < types; type++)
      for (int a = 0; a < algorithms; a++)
        for (int protocol = 0; protocol < PROTOCOLS; protocol++)
          if (row_is(row, number)) {
            *out = (struct function){collective, reduction, type, of[a], protocol, 0};
            return 1;
          }
  return 0;
}

int buffer_size(const struct layout *layout, const char *comm, enum protocol protocol) {
  return FIELD(int, comm, (layout->early ? EARLY_BUFFER_SIZES : COMM_BUFFER_SIZES) + 4 * protocol);
}

/* FUNC_INDEX() of 2.18's collectives.h: behind send-receive and the reductions of one rank. */
static int early_function(const struct layout *layout, int number, struct function *out) {
  enum { EARLY_REDUCTIONS = 6, SIGNED_TYPES = 6 };
  static const int reductions[EARLY_REDUCTIONS] = {SUM, PRODUCT, MIN_MAX, MIN_MAX, PRE_MULTIPLIED_SUM, SUM_POST_DIVIDED};
  int n = number - 1 - layout->types, width, maximum;
  *out = (struct function){.collective = SEND_RECEIVE, .algorithm = RING, .protocol = SIMPLE};
  if (!number) return 1;
  if (n < 0) return 0;
  out->protocol = n % PROTOCOLS;
  out->algorithm = (n /= PROTOCOLS) % REDUCING_ALGORITHMS;
  out->type = (n /= REDUCING_ALGORITHMS) % layout->types;
  maximum = (n /= layout->types) % EARLY_REDUCTIONS == 2;
  out->reduction = reductions[n % EARLY_REDUCTIONS];
  out->collective = n / EARLY_REDUCTIONS;
  width = 8 * element_size(out->type);
  if (out->type >= SIGNED_TYPES) out->argument = maximum;
  else out->argument = (out->type % 2 ? 0 : (uint64_t)1 << (width - 1)) ^ (maximum ? ~(uint64_t)0 : 0);
  return out->collective < SEND_RECEIVE;
}

int function_of(const struct layout *layout, int number, struct function *out) {
  if (layout->early) return early_function(layout, number, out);
  static const enum algorithm in_order[] = {TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE};
  int one = layout->types * REDUCTIONS * PROTOCOLS, gather = layout->gather_algorithms;
  size_t rows = 1 + PROTOCOLS * (gather + 1 + layout->all_gather_v) + one * (REDUCING_ALGORITHMS + 1 + gather), row = 0;
  if (!nccl.rows || nccl.row_count != rows + 1) return 0; /* and a last row that says nothing */
  *out = (struct function){SEND_RECEIVE, 0, 0, RING, SIMPLE, 0};
  if (row_is(&row, number)) return 1;
  for (int a = 0; a < gather; a++)
    for (int protocol = 0; protocol < PROTOCOLS; protocol++)
      if (row_is(&row, number)) {
        *out = (struct function){ALL_GATHER, 0, 0, GATHERING[a], protocol, 0};
        return 1;
      }
  for (int protocol = 0; protocol < PROTOCOLS; protocol++)
    if (row_is(&row, number)) {
      *out = (struct function){BROADCAST, 0, 0, RING, protocol, 0};
      return 1;
    }
  row += PROTOCOLS * layout->all_gather_v;
  return reducing(&row, number, ALL_REDUCE, in_order, REDUCING_ALGORITHMS, layout->types, out) ||
         reducing(&row, number, REDUCE, &in_order[RING], 1, layout->types, out) ||
         reducing(&row, number, REDUCE_SCATTER, GATHERING, gather, layout->types, out);
}

void function_name(const struct function *f, char *out, size_t size) {
  static const char *const collectives[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv"};
  static const char *const reductions[] = {"Sum", "Prod", "MinMax", "PreMulSum", "SumPostDiv"};
  static const char *const types[] = {"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
  static const char *const algorithms[] = {"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"};
  static const char *const protocols[] = {"LL", "LL128", "Simple"};
  if (f->collective == ALL_REDUCE || f->collective == REDUCE || f->collective == REDUCE_SCATTER)
    snprintf(out, size, "%s %s %s %s %s", collectives[f->collective], reductions[f->reduction], types[f->type],
             algorithms[f->algorithm], protocols[f->protocol]);
  else if (f->collective == SEND_RECEIVE)
    snprintf(out, size, "SendRecv");
  else
    snprintf(out, size, "%s %s %s", collectives[f->collective], algorithms[f->algorithm], protocols[f->protocol]);
}
