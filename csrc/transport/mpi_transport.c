/* MPI point-to-point as a transport. */
#include <mpi.h>

#include "base/error.h"
#include "mpi_requests.h"
#include "mpi_transport.h"

#include <stdlib.h>
#include <unistd.h>

#if defined(OPEN_MPI)
#define ABI "openmpi"
#elif defined(MPICH_VERSION) || defined(I_MPI_VERSION)
#define ABI "mpich"
#else
#error "This MPI is neither of the MPICH family nor Open MPI"
#endif

static const size_t most = (size_t)1 << 30; /* bytes of a message, or elements of a reduction; MPI counts in ints */

typedef struct {
    coll_endpoint base;
    MPI_Comm comm;
} mpi_endpoint;

struct coll_messages {
    mpi_endpoint *endpoint;
    int capacity, used; /* slots from `used` on have never been used */
    int cancelled;      /* whether the receives have been cancelled */
    size_t *expected;   /* bytes of each receive; 0 for sends, whose status reports 0 */
    MPI_Status *statuses;
    MPI_Request requests[];
};

static int failed(coll_endpoint *e, int code) {
    e->mpi_error = code;
    int class = MPI_ERR_UNKNOWN;
    MPI_Error_class(code, &class);
    return class == MPI_ERR_TRUNCATE ? COLL_ERR_MESSAGE : COLL_ERR_MPI;
}

/* Record that the message of a slot, from `peer`, was not as long as expected; see coll_unequal. */
static int unequal(const coll_messages *m, int slot, int peer, size_t bytes) {
    coll_endpoint *e = &m->endpoint->base;
    e->unequal = (coll_unequal){peer, bytes, m->expected[slot]};
    return COLL_ERR_MESSAGE;
}

static coll_messages *mpi_messages_new(coll_endpoint *endpoint, int capacity) {
    size_t n = (size_t)capacity;
    coll_messages *m = calloc(1, sizeof *m + n * sizeof m->requests[0]);
    if (!m)
        return NULL;
    m->endpoint = (mpi_endpoint *)endpoint;
    m->capacity = capacity;
    m->expected = calloc(n, sizeof *m->expected);
    m->statuses = calloc(n, sizeof *m->statuses);
    if (!m->expected || !m->statuses) {
        free(m->expected);
        free(m->statuses);
        free(m);
        return NULL;
    }
    for (int i = 0; i < capacity; i++)
        m->requests[i] = MPI_REQUEST_NULL;
    return m;
}

static void mpi_messages_free(coll_messages *m) {
    free(m->expected);
    free(m->statuses);
    free(m);
}

static int send_by(int (*isend)(const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *), coll_messages *m,
                   int slot, const void *buf, size_t bytes, int peer, int tag) {
    m->used = slot >= m->used ? slot + 1 : m->used;
    m->expected[slot] = 0;
    int code = isend(buf, (int)bytes, MPI_BYTE, peer, tag, m->endpoint->comm, &m->requests[slot]);
    return code == MPI_SUCCESS ? COLL_OK : failed(&m->endpoint->base, code);
}

static int mpi_send(coll_messages *m, int slot, const void *buf, size_t bytes, int peer, int tag) {
    return send_by(MPI_Isend, m, slot, buf, bytes, peer, tag);
}

static int mpi_send_met(coll_messages *m, int slot, const void *buf, size_t bytes, int peer, int tag) {
    return send_by(MPI_Issend, m, slot, buf, bytes, peer, tag);
}

static int mpi_recv(coll_messages *m, int slot, void *buf, size_t bytes, int peer, int tag) {
    m->used = slot >= m->used ? slot + 1 : m->used;
    m->expected[slot] = bytes;
    int code = MPI_Irecv(buf, (int)bytes, MPI_BYTE, peer, tag, m->endpoint->comm, &m->requests[slot]);
    int error = code == MPI_SUCCESS ? COLL_OK : failed(&m->endpoint->base, code);
    return error == COLL_ERR_MESSAGE ? unequal(m, slot, peer, SIZE_MAX) : error;
}

/* A message shorter than its receive is no error in MPI, but it is one in a collective. */
static int check_length(const coll_messages *m, int slot, const MPI_Status *status) {
    int bytes = 0;
    if (m->expected[slot] == 0)
        return COLL_OK;
    MPI_Get_count(status, MPI_BYTE, &bytes);
    return (size_t)bytes == m->expected[slot] ? COLL_OK : unequal(m, slot, status->MPI_SOURCE, (size_t)bytes);
}

static int first_error(coll_messages *m, int n, const int *done) {
    for (int i = 0; i < n; i++) {
        const MPI_Status *status = &m->statuses[i];
        if (status->MPI_ERROR == MPI_SUCCESS || status->MPI_ERROR == MPI_ERR_PENDING)
            continue;
        int code = failed(&m->endpoint->base, status->MPI_ERROR);
        return code == COLL_ERR_MESSAGE ? unequal(m, done[i], status->MPI_SOURCE, SIZE_MAX) : code;
    }
    return failed(&m->endpoint->base, MPI_ERR_IN_STATUS);
}

static int mpi_test(coll_messages *m, int *done) {
    int n = 0;
    int code = MPI_Testsome(m->used, m->requests, &n, done, m->statuses);
    if (code == MPI_ERR_IN_STATUS)
        return first_error(m, n, done);
    if (code != MPI_SUCCESS)
        return failed(&m->endpoint->base, code);
    if (n == MPI_UNDEFINED)
        return 0;
    for (int i = 0; i < n; i++)
        if (check_length(m, done[i], &m->statuses[i]) != COLL_OK)
            return COLL_ERR_MESSAGE;
    return n;
}

/* Sends are not cancelled: that needs the receiver, and few MPI libraries can do it. */
static int mpi_cancel(coll_messages *m) {
    int left = 0;
    for (int i = 0; i < m->used; i++) {
        int complete = 1;
        if (m->requests[i] == MPI_REQUEST_NULL || m->expected[i] == 0)
            continue;
        if (!m->cancelled)
            MPI_Cancel(&m->requests[i]);
        if (MPI_Test(&m->requests[i], &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS)
            left += !complete;
    }
    m->cancelled = 1;
    return left;
}

static void mpi_endpoint_free(coll_endpoint *e) {
    free(e);
}

static const coll_transport mpi_transport = {mpi_messages_new, mpi_messages_free, mpi_send,          mpi_recv,
                                             mpi_test,         mpi_cancel,        mpi_endpoint_free, mpi_send_met};

static int initialized(void) {
    int flag = 0;
    MPI_Initialized(&flag);
    return flag;
}

static const char *library_version(void) {
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(text, &length);
    return text;
}

#ifdef OPEN_MPI
/* A number among the settings of the MPI library; 0 if it has no such setting, or not in the parts that it uses. */
static size_t setting(const char *name) {
    MPI_T_cvar_handle handle;
    uint64_t value = 0;
    int index, count;
    if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS ||
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) != MPI_SUCCESS)
        return 0;
    if (count != 1 || MPI_T_cvar_read(handle, &value) != MPI_SUCCESS)
        value = 0;
    MPI_T_cvar_handle_free(&handle);
    return (size_t)value;
}

/* Whether settings can be asked for, until MPI_T_finalize. */
static int open_settings(void) {
    int level, provided;
    MPI_Query_thread(&level); /* Open MPI takes the level given here for that of the whole library */
    return MPI_T_init_thread(level, &provided) == MPI_SUCCESS;
}

/* Open MPI reads this setting as it begins, and changes it if there are more ranks than places for them. */
static int gives_way(void) {
    static int found = -1;
    if (found < 0 && open_settings()) {
        found = setting("mpi_yield_when_idle") != 0;
        MPI_T_finalize();
    }
    return found > 0;
}

/* Open MPI forgets the settings of parts that it has closed. Messages go by TCP if ob1 is the part that sends them, but
 * for openib, which Open MPI 4 had beside it; ofi and uct may be open for one-sided communication alone. */
static size_t unannounced(void) {
    static size_t found;
    static int asked;
    const size_t header = 256; /* more than Open MPI puts before a message */
    size_t limit = 0;
    if (asked)
        return found;
    if (!open_settings())
        return 0;
    if (setting("pml_ob1_priority") && !setting("btl_openib_eager_limit"))
        limit = setting("btl_tcp_eager_limit");
    MPI_T_finalize();
    limit = limit > 2 * header ? limit - header : 0;
    found = limit < most ? limit : most;
    asked = 1;
    return found;
}
#else
static int gives_way(void) {
    return 0;
}

static size_t unannounced(void) {
    return 0;
}
#endif

static coll_endpoint *endpoint_new(intptr_t handle) {
    mpi_endpoint *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->comm = (MPI_Comm)handle;
    e->base.transport = &mpi_transport;
    e->base.message_limit = most;
    MPI_Comm_rank(e->comm, &e->base.rank);
    MPI_Comm_size(e->comm, &e->base.size);
    int found = 0, *limit = NULL;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found);
    e->base.tag_limit = found ? *limit : 32767;
    e->base.gives_way = gives_way();
    return &e->base;
}

static int poll_mpi(coll_endpoint *e) {
    int flag;
    int code = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, ((mpi_endpoint *)e)->comm, &flag, MPI_STATUS_IGNORE);
    return code == MPI_SUCCESS ? COLL_OK : failed(e, code);
}

static int reduce_local(intptr_t op, intptr_t datatype, const void *in, void *inout, size_t n) {
    MPI_Aint lower, extent;
    int code = MPI_Type_get_extent((MPI_Datatype)datatype, &lower, &extent);
    for (size_t i = 0; i < n && code == MPI_SUCCESS; i += most) {
        size_t at = i * (size_t)extent;
        int part = (int)(n - i < most ? n - i : most);
        code = MPI_Reduce_local((const char *)in + at, (char *)inout + at, part, (MPI_Datatype)datatype, (MPI_Op)op);
    }
    return code == MPI_SUCCESS ? COLL_OK : COLL_ERR_OP;
}

static void (*at_finalize_function)(void);
static pid_t at_finalize_pid;

/* MPI_Finalize begins by deleting the attributes of MPI_COMM_SELF. */
static int self_deleted(MPI_Comm comm, int key, void *value, void *extra) {
    (void)comm, (void)key, (void)value, (void)extra;
    if (getpid() == at_finalize_pid)
        at_finalize_function();
    return MPI_SUCCESS;
}

static int at_finalize(void (*function)(void)) {
    int key;
    at_finalize_function = function;
    at_finalize_pid = getpid();
    if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, self_deleted, &key, NULL) != MPI_SUCCESS)
        return COLL_ERR_MPI;
    return MPI_Comm_set_attr(MPI_COMM_SELF, key, NULL) == MPI_SUCCESS ? COLL_OK : COLL_ERR_MPI;
}

static void life_free(coll_mpi_life *life) {
    if (atomic_fetch_sub(&life->holders, 1) == 1)
        free(life);
}

/* MPI deletes a communicator's attributes when it frees it, possibly while it holds locks of its own. */
static int life_ended(MPI_Comm comm, int key, void *life, void *extra) {
    (void)comm, (void)key, (void)extra;
    atomic_store(&((coll_mpi_life *)life)->alive, 0);
    life_free(life);
    return MPI_SUCCESS;
}

static coll_mpi_life *life_new(intptr_t comm) {
    static int key = MPI_KEYVAL_INVALID;
    if (key == MPI_KEYVAL_INVALID &&
        MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, life_ended, &key, NULL) != MPI_SUCCESS)
        return NULL;
    coll_mpi_life *life;
    int found;
    if (MPI_Comm_get_attr((MPI_Comm)comm, key, &life, &found) == MPI_SUCCESS && found) {
        atomic_fetch_add(&life->holders, 1);
        return life;
    }
    life = malloc(sizeof *life);
    if (!life)
        return NULL;
    atomic_init(&life->alive, ~0u);
    atomic_init(&life->holders, 2); /* MPI, and the caller */
    if (MPI_Comm_set_attr((MPI_Comm)comm, key, life) == MPI_SUCCESS)
        return life;
    free(life);
    return NULL;
}

static void abort_all(int code) {
    MPI_Abort(MPI_COMM_WORLD, code);
}

extern __attribute__((visibility("default"))) const coll_mpi_api coll_mpi;
const coll_mpi_api coll_mpi = {
    .version = COLL_MPI_VERSION,
    .abi = ABI,
    .initialized = initialized,
    .library_version = library_version,
    .endpoint_new = endpoint_new,
    .unannounced = unannounced,
    .poll = poll_mpi,
    .reduce_local = reduce_local,
    .request_start = coll_mpi_request_start,
    .request_complete = coll_mpi_request_complete,
    .request_waited = coll_mpi_request_waited,
    .on_release = coll_mpi_on_release,
    .on_wait = coll_mpi_on_wait,
    .at_finalize = at_finalize,
    .life_new = life_new,
    .life_free = life_free,
    .abort = abort_all,
};
