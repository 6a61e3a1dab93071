/* A NIC places bytes in ascending order, and NCCL's protocols live by that: a kernel reads a line of LL (4 bytes of data, 4 of
 * flag) or LL128 (120 and 8) as soon as the flag behind it is there, before any completion.  One process_vm_writev() gives no such
 * order: Linux copies with "rep movsb" (where the CPU has fsrm), and its stores may be seen in any order (Intel SDM, volume 1,
 * 7.3.9.3).  So what looks like lines goes over twice, first without flags.  check_order.c shows both. */
#define _GNU_SOURCE
#include "verbs_place.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_BELOW = 1 << 28 /* a flag counts steps; the halves of most numbers look otherwise */ };

/* The bytes of a line, of which the last `flag` are one flag in all of them; 0: no lines. */
static size_t line_of(const char *data, size_t length, size_t *flag) {
  for (size_t line = 8; line <= 128; line += 120) {
    if (length % line || length < line) continue;
    *flag = line == 8 ? 4 : 8;
    uint64_t first = 0;
    memcpy(&first, data + line - *flag, *flag);
    uint64_t other = first;
    for (size_t at = line; at < length && other == first; at += line) memcpy(&other, data + at + line - *flag, *flag);
    if (first && first < STEPS_BELOW && other == first) return line;
  }
  return 0;
}

ssize_t verbs_place(pid_t pid, const struct iovec *parts, int count, const struct iovec *there) {
  size_t flag = 0, length = there->iov_len, line = count == 1 ? line_of(parts->iov_base, length, &flag) : 0;
  char *unflagged = line ? malloc(length) : NULL;
  if (unflagged) {
    memcpy(unflagged, parts->iov_base, length);
    for (size_t end = line; end <= length; end += line) memset(unflagged + end - flag, 0, flag);
    ssize_t placed = process_vm_writev(pid, &(struct iovec){unflagged, length}, 1, there, 1, 0);
    free(unflagged);
    if (placed != (ssize_t)length) return placed;
  }
  return process_vm_writev(pid, parts, count, there, 1, 0);
}
