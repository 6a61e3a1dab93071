/* A time of day of its own for one process and its children, by LD_PRELOAD: no namespace has one (time_namespaces(7)), and the
 * machine's is not a test's to set.  FAKE_CLOCK_AHEAD: seconds that CLOCK_REALTIME is ahead.  The other clocks are the machine's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static time_t ahead;

/* Once: as root netdoctor's own libraries see no variable that may name code (netdoctor/__main__.py). */
__attribute__((constructor)) static void begin(void)
{
    const char *told = getenv("FAKE_CLOCK_AHEAD");
    ahead = told ? (time_t)strtoll(told, NULL, 10) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    int code;

    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    code = real(clock, now);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += ahead;
    return code;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec told;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &told);
    now->tv_sec = told.tv_sec;
    now->tv_usec = told.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec told;

    clock_gettime(CLOCK_REALTIME, &told);
    if (now)
        *now = told.tv_sec;
    return told.tv_sec;
}
