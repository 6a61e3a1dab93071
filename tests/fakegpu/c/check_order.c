/* check_order [plain]: how many lines of LL128 a reader in another process finds torn: the flag of this round, data of the last.
 * "plain": by process_vm_writev() alone, which tears some where Linux copies with "rep movsb". */
#define _GNU_SOURCE
#include "verbs_place.h"
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <sched.h>
#include <unistd.h>

enum { ROUNDS = 100000, SIZE = 2048, LINE = 128, WORDS = LINE / 8, OFFSET = 64 /* lines need not begin where a cache line does */ };
static _Alignas(4096) char room[SIZE + OFFSET];

int main(int count, char **unused) {
  (void)unused;
  _Atomic int *seen = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  uint64_t *lines = (uint64_t *)(room + OFFSET);
  struct iovec there = {lines, SIZE};
  pid_t reader = getpid(), writer = fork();
  if (!writer) {
    static _Alignas(4096) uint64_t out[SIZE / 8];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int round = 1; round <= ROUNDS; round++) {
      for (int i = 0; i < SIZE / 8; i++) out[i] = round;
      struct iovec here = {out, SIZE};
      ssize_t placed = count > 1 ? process_vm_writev(reader, &here, 1, &there, 1, 0) : verbs_place(reader, &here, 1, &there);
      if (placed != SIZE) _exit(1);
      for (int turns = 1; atomic_load(seen) < round; turns++)
        if (turns % 1000 == 0) sched_yield();
    }
    _exit(0);
  }
  int torn = 0, ended;
  for (int round = 1; round <= ROUNDS; round++) {
    for (int line = 0; line < SIZE / LINE; line++) {
      _Atomic uint64_t *word = (_Atomic uint64_t *)lines + line * WORDS;
      for (int turns = 1; atomic_load(word + WORDS - 1) != (uint64_t)round; turns++) {
        if (turns % 1000) continue;
        sched_yield();
        if (waitpid(writer, &ended, WNOHANG)) return 2;
      }
      int whole = 1;
      for (int i = 0; i < WORDS; i++) whole = whole && atomic_load(word + i) == (uint64_t)round;
      torn += !whole;
    }
    atomic_store(seen, round);
  }
  printf("%d\n", torn);
  return waitpid(writer, &ended, 0) == writer && !ended ? 0 : 2;
}
