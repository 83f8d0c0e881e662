/* The wall clock of one process, as a test wants it. Preloaded into redis-server (LD_PRELOAD).
 *
 * CHRONOSDB_TEST_CLOCK names a file of two native 64-bit integers: a fixed time in microseconds
 * since 1970 (0: the clock runs), and an offset in microseconds to the real time.
 * Monotonic clocks are untouched. It never allocates: jemalloc asks for the time while it starts. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *wanted; /* fixed, offset */

static int64_t wall_us(clockid_t clock) {
    struct timespec real;
    syscall(SYS_clock_gettime, clock, &real);
    int64_t now_us = (int64_t)real.tv_sec * 1000000 + real.tv_nsec / 1000;
    if (!wanted) {
        const char *path = getenv("CHRONOSDB_TEST_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (file < 0) return now_us;
        void *page = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (page == MAP_FAILED) return now_us;
        wanted = page;
    }
    int64_t fixed_us = wanted[0];
    return fixed_us ? fixed_us : now_us + wanted[1];
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, clock, time);
    int64_t now_us = wall_us(clock);
    time->tv_sec = now_us / 1000000;
    time->tv_nsec = now_us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    int64_t now_us = wall_us(CLOCK_REALTIME);
    time->tv_sec = now_us / 1000000;
    time->tv_usec = now_us % 1000000;
    return 0;
}

time_t time(time_t *seconds) {
    time_t now = wall_us(CLOCK_REALTIME) / 1000000;
    if (seconds) *seconds = now;
    return now;
}
