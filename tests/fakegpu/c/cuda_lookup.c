/* cuGetProcAddress: the function of a name and a CUDA version; for one that is not there, code that says its name when called. */
#define _GNU_SOURCE
#include "cuda.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#ifndef __x86_64__
#error "the stand-ins of missing functions are x86-64 code"
#endif

#define MOST 1024
#define STUB 32
static CUresult missing(const char *name) {
  fake_say("MISSING in the fake driver, and called: %s", name);
  return NOT_SUPPORTED;
}

/* mov name, %rdi; mov missing, %rax; jmp *%rax */
static void *stub_of(const char *name) {
  static struct {
    char *name;
    void *code;
  } made[MOST];
  static int count;
  static unsigned char *page;
  for (int i = 0; i < count; i++)
    if (!strcmp(made[i].name, name)) return made[i].code;
  if (!page) page = mmap(NULL, MOST * STUB, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (count == MOST || page == MAP_FAILED) return NULL;
  unsigned char *code = page + STUB * count;
  void *target = (void *)missing;
  made[count].name = strdup(name);
  made[count].code = code;
  memcpy(code, "\x48\xbf", 2);
  memcpy(code + 2, &made[count].name, 8);
  memcpy(code + 10, "\x48\xb8", 2);
  memcpy(code + 12, &target, 8);
  memcpy(code + 20, "\xff\xe0", 2);
  count++;
  return code;
}

/* Which _vN a program of a CUDA version gets, where it is not the newest that is there. */
static int version_of(const char *name, int cuda) {
  if (!strcmp(name, "cuCtxCreate")) return cuda < 11040 ? 2 : cuda < 12050 ? 3 : 4;
  if (!strcmp(name, "cuStreamGetCaptureInfo")) return cuda < 11030 ? 1 : cuda < 12030 ? 2 : 3;
  if (!strcmp(name, "cuCtxGetDevice")) return cuda < 13000 ? 1 : 2;
  if (!strcmp(name, "cuGetProcAddress")) return cuda < 12000 ? 1 : 2;
  return 0;
}

static CUresult look_up(const char *name, void **out, int cuda, int *status) {
  static void *self;
  char versioned[160];
  int version = version_of(name, cuda);
  void *found = NULL;
  lock();
  if (!self) {
    Dl_info here;
    dladdr((void *)look_up, &here);
    self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }
  if (version != 1) {
    snprintf(versioned, sizeof versioned, "%s_v%d", name, version ? version : 2);
    found = dlsym(self, versioned);
  }
  if (!found) found = dlsym(self, name);
  *out = found ? found : stub_of(name);
  unlock();
  if (status) *status = 0; /* found */
  return *out ? SUCCESS : NOT_FOUND;
}
API CUresult cuGetProcAddress(const char *name, void **out, int cuda, uint64_t flags) {
  ENTER("%s %d", name, cuda);
  return look_up(name, out, cuda, NULL);
}
API CUresult cuGetProcAddress_v2(const char *name, void **out, int cuda, uint64_t flags, int *status) {
  ENTER("%s %d", name, cuda);
  return look_up(name, out, cuda, status);
}
