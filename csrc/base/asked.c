#include "asked.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

static atomic_int asked; /* lock-free, so that a signal handler may change it */
static void (*answer)(int);

static void note(int signal) {
    atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
    answer(signal);
}

int coll_asked_watch(int signal) {
    struct sigaction now;
    if (sigaction(signal, NULL, &now) != 0 || now.sa_flags & SA_SIGINFO)
        return -1;
    if (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN || now.sa_handler == note)
        return -1;
    answer = now.sa_handler;
    now.sa_handler = note;
    return sigaction(signal, &now, NULL);
}

int coll_asked(void) {
    return atomic_load_explicit(&asked, memory_order_relaxed);
}
