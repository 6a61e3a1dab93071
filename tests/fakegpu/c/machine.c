/* Reads the machine's file, once, when the library is loaded; fake.h tells what it is made of. */
#define _GNU_SOURCE
#include "fake.h"
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef FAKE_LIBRARY
#error "FAKE_LIBRARY: the name of the library in the trace"
#endif

struct entry {
  char *key, *value;
};
struct fault {
  char call[64];
  int which, onwards, result, hang, pause, seen;
};

int fake_gpus;
struct fake_gpu fake_gpu[FAKE_MAX_GPUS];
static struct entry *entries;
static struct fault *faults;
static struct fake_event *events;
static int entry_count, fault_count, event_count, tracing;
static pthread_mutex_t fault_lock = PTHREAD_MUTEX_INITIALIZER;

static void *grown(void *list, int count, size_t size) {
  void *more = count % 64 ? list : realloc(list, (count + 64) * size);
  if (!more) abort();
  return more;
}

static int by_key(const void *a, const void *b) {
  return strcmp(((const struct entry *)a)->key, ((const struct entry *)b)->key);
}

static const char *value_of(const char *key) {
  struct entry wanted = {(char *)key, NULL};
  struct entry *found = entry_count ? bsearch(&wanted, entries, entry_count, sizeof *entries, by_key) : NULL;
  return found ? found->value : NULL;
}

const char *fake_text(const char *missing, const char *format, ...) {
  char key[160];
  va_list values;
  va_start(values, format);
  vsnprintf(key, sizeof key, format, values);
  va_end(values);
  const char *found = value_of(key);
  return found ? found : missing;
}

long long fake_number(long long missing, const char *format, ...) {
  char key[160];
  va_list values;
  va_start(values, format);
  vsnprintf(key, sizeof key, format, values);
  va_end(values);
  const char *found = value_of(key);
  return found ? strtoll(found, NULL, 0) : missing;
}

void fake_say(const char *format, ...) {
  char text[512];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  fprintf(stderr, "[fake %s %ld] %s\n", FAKE_LIBRARY, syscall(SYS_gettid), text);
}

static void read_fault(const char *value) {
  struct fault one = {.onwards = 0};
  char which[16], result[16];
  if (sscanf(value, "%63s %15s %15s", one.call, which, result) != 3) {
    fake_say("no fault can be read from: %s", value);
    exit(125);
  }
  one.which = which[0] == '*' ? 1 : atoi(which);
  one.onwards = which[0] == '*' || strchr(which, '+');
  one.hang = !strcmp(result, "hang");
  one.pause = strstr(result, "ms") ? atoi(result) : 0;
  one.result = one.pause ? 0 : atoi(result);
  faults = grown(faults, fault_count, sizeof *faults);
  faults[fault_count++] = one;
}

static void read_event(const char *value) {
  struct fake_event one;
  if (sscanf(value, "%63s %d %d %d", one.device, &one.number, &one.port, &one.after) != 4) {
    fake_say("no event can be read from: %s", value);
    exit(125);
  }
  events = grown(events, event_count, sizeof *events);
  events[event_count++] = one;
}

static void read_gpu(int number) {
  struct fake_gpu *gpu = &fake_gpu[number];
  const char *address = fake_text("", "gpu.%d.address", number), *uuid = fake_text("", "gpu.%d.uuid", number);
  if (sscanf(address, "%x:%x:%x", &gpu->domain, &gpu->bus, &gpu->device) != 3 || strlen(uuid) != 32) {
    fake_say("GPU %d has no address or no UUID", number);
    exit(125);
  }
  snprintf(gpu->address, sizeof gpu->address, "%04x:%02x:%02x.0", gpu->domain, gpu->bus, gpu->device);
  for (int i = 0; i < 16; i++) sscanf(uuid + 2 * i, "%2hhx", &gpu->uuid[i]);
}

const char *fake_machine(void) {
  static char target[PATH_MAX];
  const char *path = getenv("FAKEGPU_MACHINE");
  return path ? path : realpath(MACHINE, target) ? target : NULL;
}

__attribute__((constructor)) static void read_machine(void) {
  const char *path = fake_machine();
  FILE *file = path ? fopen(path, "re") : NULL;
  if (!file) {
    fake_say("no machine: neither FAKEGPU_MACHINE nor " MACHINE " names a file that can be read");
    return;
  }
  char *line = NULL;
  size_t room = 0;
  while (getline(&line, &room, file) > 0) {
    line[strcspn(line, "\n")] = 0;
    char *value = strchr(line, ' ');
    if (line[0] == '#' || !value) continue;
    *value++ = 0;
    if (!strcmp(line, "fault")) read_fault(value);
    else if (!strcmp(line, "event")) read_event(value);
    else {
      entries = grown(entries, entry_count, sizeof *entries);
      entries[entry_count++] = (struct entry){strdup(line), strdup(value)};
    }
  }
  free(line);
  fclose(file);
  qsort(entries, entry_count, sizeof *entries, by_key);
  tracing = fake_number(0, "trace");
  fake_gpus = fake_number(0, "gpus");
  if (fake_gpus > FAKE_MAX_GPUS) fake_gpus = FAKE_MAX_GPUS;
  for (int i = 0; i < fake_gpus; i++) read_gpu(i);
}

int fake_gpu_at(const char *address) {
  unsigned domain, bus, device;
  if (sscanf(address, "%x:%x:%x", &domain, &bus, &device) != 3) return -1;
  for (int i = 0; i < fake_gpus; i++)
    if (fake_gpu[i].domain == domain && fake_gpu[i].bus == bus && fake_gpu[i].device == device) return i;
  return -1;
}

int fake_next_event(int *at, struct fake_event *out) {
  if (*at >= event_count) return 0;
  *out = events[(*at)++];
  return 1;
}

/* "cuMemAlloc" names cuMemAlloc, cuMemAlloc_v2, …; an exact name is taken, too. */
static int names(const char *call, const char *function) {
  size_t length = strlen(call);
  if (strncmp(call, function, length)) return 0;
  const char *rest = function + length;
  return !*rest || (rest[0] == '_' && rest[1] == 'v' && rest[2] >= '0' && rest[2] <= '9' && !rest[3]);
}

int fake_ordered(const char *moment) {
  int result = 0, hang = 0, milliseconds = 0;
  if (!fault_count) return 0;
  pthread_mutex_lock(&fault_lock);
  for (int i = 0; i < fault_count; i++) {
    struct fault *one = &faults[i];
    if (!names(one->call, moment)) continue;
    one->seen++;
    if (one->seen == one->which || (one->onwards && one->seen > one->which)) {
      result = one->result;
      hang = one->hang;
      milliseconds = one->pause;
    }
  }
  pthread_mutex_unlock(&fault_lock);
  if (hang) {
    fake_say("%s hangs, as the machine's file orders", moment);
    for (;;) pause();
  }
  usleep(1000 * milliseconds);
  return result;
}

int fake_enter(const char *function, const char *format, ...) {
  int result = fake_ordered(function);
  if (tracing) {
    char text[400];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (result) fake_say("%s%s -> %d (ordered)", function, text, result);
    else fake_say("%s%s", function, text);
  }
  return result;
}
