"""Declarations of the C functions and types (csrc/*/*.h) for Cython."""

from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "base/error.h" nogil:
    enum:
        COLL_OK
        COLL_PENDING
        COLL_ERR_MEMORY
        COLL_ERR_SCHEDULE
        COLL_ERR_MESSAGE
        COLL_ERR_MPI
        COLL_ERR_ARGUMENT
        COLL_ERR_OP
        COLL_ERR_READ
        COLL_ERR_GIVEN_UP
        COLL_ERR_WITHIN
        COLL_ERR_CALLBACK

cdef extern from "base/partition.h" nogil:
    size_t coll_part(size_t n, size_t parts, size_t i)

cdef extern from "kernels/kernels.h" nogil:
    ctypedef void (*coll_reduce2_fn)(void *, const void *, const void *, size_t) noexcept
    ctypedef void (*coll_reducep_fn)(void **, int, const void **, int, size_t) noexcept
    ctypedef void (*coll_scale_fn)(void *, const void *, int, size_t) noexcept
    int coll_ndtypes()
    int coll_nops()
    const char *coll_dtype_name(int)
    const char *coll_op_name(int)
    size_t coll_dtype_size(int)
    coll_reduce2_fn coll_reduce2(int, int)
    coll_reducep_fn coll_reducep(int, int)
    coll_scale_fn coll_scale(int)
    ctypedef void (*coll_widen_fn)(float *, const void *, size_t) noexcept
    ctypedef void (*coll_narrow_fn)(void *, const float *, size_t) noexcept
    coll_widen_fn coll_widen(int)
    coll_narrow_fn coll_narrow(int)
    const char *coll_isa()
    int coll_isa_supported(const char *)
    int coll_isa_select(const char *)

cdef extern from "kernels/exact.h" nogil:
    int coll_exact_of(int)
    void coll_exact_add(int, void *, const void *, size_t, size_t)
    void coll_exact_round(int, void *, const void *, size_t)

cdef extern from "schedule/schedule.h" nogil:
    ctypedef struct coll_step:
        int32_t kind
    ctypedef struct coll_layout:
        int size, nblocks, nscratch, in_place, input_block, vector_block, blockwise
    ctypedef struct coll_program:
        int nslots, slot_blocks, single
    coll_program *coll_program_new(const coll_step *, int, const coll_layout *, int *, int *)
    void coll_program_free(coll_program *)

cdef extern from "transport/transport.h" nogil:
    ctypedef struct coll_transport:
        void (*endpoint_free)(coll_endpoint *) noexcept
    ctypedef struct coll_unequal:
        int peer
        size_t bytes, expected
    ctypedef struct coll_endpoint:
        const coll_transport *transport
        coll_unequal unequal
        int rank, size, tag_limit, mpi_error
        size_t message_limit
    ctypedef struct coll_inproc:
        pass
    coll_inproc *coll_inproc_new(int, unsigned)
    void coll_inproc_free(coll_inproc *)
    coll_endpoint *coll_inproc_endpoint(coll_inproc *, int)

cdef extern from "<stdatomic.h>" nogil:
    ctypedef int atomic_int

cdef extern from "transport/mpi_transport.h" nogil:
    enum:
        COLL_MPI_VERSION
    ctypedef struct coll_mpi_life:
        unsigned alive
    ctypedef struct coll_mpi_api:
        int version
        const char *abi
        int (*initialized)() noexcept nogil
        const char *(*library_version)() noexcept nogil
        coll_endpoint *(*endpoint_new)(intptr_t) noexcept nogil
        size_t (*unannounced)() noexcept nogil
        int (*poll)(coll_endpoint *) noexcept nogil
        int (*reduce_local)(intptr_t, intptr_t, const void *, void *, size_t) noexcept nogil
        int (*request_start)(intptr_t *, int **) noexcept nogil
        int (*request_complete)(intptr_t, int *) noexcept nogil
        int64_t (*request_waited)(const int *, int64_t) noexcept nogil
        void (*on_release)(void (*)() noexcept nogil) noexcept nogil
        void (*on_wait)(void (*)() noexcept nogil, void (*)(const atomic_int *) noexcept nogil) noexcept nogil
        int (*at_finalize)(void (*)()) noexcept nogil
        coll_mpi_life *(*life_new)(intptr_t) noexcept nogil
        void (*life_free)(coll_mpi_life *) noexcept nogil
        void (*abort)(int) noexcept nogil

cdef extern from "schedule/executor.h" nogil:
    ctypedef int (*coll_user_op)(void *, void *, const void *, const void *, void *, size_t) noexcept
    ctypedef struct coll_message:
        size_t count, itemsize
        int segments, depth
        const size_t *cuts
        const size_t *input_cuts
        const size_t *starts
        const size_t *input_starts
        coll_reduce2_fn reduce
        coll_scale_fn scale
        coll_user_op user_op
        void *user_context
    ctypedef struct coll_exec:
        pass
    coll_exec *coll_exec_new(const coll_program *, coll_endpoint *, const coll_message *, int *)
    void coll_exec_free(coll_exec *)
    int coll_exec_start(coll_exec *, const void *, void *, int)
    int coll_exec_progress(coll_exec *, size_t)
    int coll_exec_waiting(const coll_exec *, int *, int)
    int coll_exec_busy(const coll_exec *)
    size_t coll_exec_footprint(const coll_exec *)

cdef extern from "transport/user_op.h" nogil:
    ctypedef struct coll_mpi_op:
        const coll_mpi_api *mpi
        intptr_t op, datatype
        size_t itemsize
    int coll_mpi_op_apply(void *, void *, const void *, const void *, void *, size_t) noexcept

cdef extern from "progress/progress.h" nogil:
    ctypedef struct coll_task:
        void *self
        int (*progress)(void *, size_t) noexcept nogil
        int (*waiting)(const void *, int *, int) noexcept nogil
        int (*abandon)(void *) noexcept nogil
    coll_task coll_exec_task(coll_exec *)
    ctypedef struct coll_request:
        coll_task task
        int status
        const coll_mpi_api *mpi
        intptr_t handle
        int *handle_status
        uint64_t ended
    int coll_progress_submit(coll_request *)
    void coll_progress_poll()
    int coll_progress_outstanding()
    unsigned coll_progress_failures()
    int coll_progress_waiting(const coll_task *, int *, int)
    int coll_progress_wait(const coll_task *, const coll_request *, int, long)
    void coll_progress_wait_in_mpi(const atomic_int *)
    int64_t coll_progress_waited_in_mpi(const coll_request *, int64_t)
    int coll_progress_sleep(const coll_request *, long)
    int coll_progress_abandon(coll_request *)
    void coll_progress_stop(long)

cdef extern from "progress/patience.h" nogil:
    ctypedef struct coll_patience:
        pass
    coll_patience coll_patience_new()
    void coll_give_way(coll_patience *)

cdef extern from "progress/ending.h" nogil:
    void coll_progress_broken(const char *)
    void coll_progress_mended()
    void coll_progress_survived(int)
    void coll_progress_exit_code(int)
    void coll_progress_abort()
    int coll_progress_watch_end(const coll_mpi_api *, int (*)() noexcept)
    void coll_progress_watch_process(int)
    void coll_progress_finalized()
    void coll_progress_note(char *)
    int coll_progress_watch_forks()
    int coll_progress_ended()

cdef extern from "base/asked.h" nogil:
    int coll_asked_watch(int)
    int coll_asked()

cdef extern from "heap/heap.h" nogil:
    ctypedef struct coll_heap:
        pass
    ctypedef struct coll_heap_id:
        int64_t pid, fd
        uint64_t size
    coll_heap *coll_heap_new(size_t)
    void coll_heap_free(coll_heap *)
    coll_heap_id coll_heap_identify(const coll_heap *)
    char *coll_heap_base(const coll_heap *)
    size_t coll_heap_size(const coll_heap *)
    void *coll_heap_alloc(coll_heap *, size_t)
    void coll_heap_release(coll_heap *, void *)
    int coll_heap_alias(coll_heap *, const void *, size_t, void *)
    int coll_heap_resize(coll_heap *, void *, size_t)
    int coll_heap_is_inherited(const coll_heap *)
    size_t coll_heap_usable(const coll_heap *, const void *)
    size_t coll_heap_reserved(coll_heap *)
    int coll_heap_has(const char *, size_t, const void *)
    char *coll_heap_attach(const coll_heap_id *)
    void coll_heap_detach(const coll_heap_id *, char *)
    int coll_heap_let_read(int64_t)
    int coll_heap_private_is_readable(const coll_heap_id *)

cdef extern from "node/node.h" nogil:
    enum:
        COLL_NODE_INLINE
        COLL_NODE_READ
        COLL_NODE_SEGMENT
        COLL_NODE_PIECE
    ctypedef struct coll_node:
        pass
    ctypedef struct coll_node_limits:
        size_t copy, read, shortest, segment, stream, private
    ctypedef enum coll_node_kind:
        COLL_NODE_ALLREDUCE
        COLL_NODE_REDUCE
        COLL_NODE_BCAST
        COLL_NODE_ALLGATHER
        COLL_NODE_GATHER
        COLL_NODE_REDUCE_SCATTER
        COLL_NODE_SCATTER
        COLL_NODE_ALLTOALL
        COLL_NODE_SCAN
        COLL_NODE_EXSCAN
    ctypedef struct coll_node_message:
        coll_node_kind kind
        int root
        const void *input
        void *output
        size_t count, itemsize
        const size_t *cuts
        const size_t *input_cuts
        const size_t *starts
        const size_t *input_starts
        int variant
        int dtype, op
        int type
        coll_user_op user_op
        void *user_context
        char *user_spare
    ctypedef struct coll_node_call:
        coll_node_message message
        uint64_t number
        int status
    size_t coll_node_area_bytes()
    coll_node *coll_node_new(coll_heap *, int, int, char **, const size_t *, const uint64_t *)
    void coll_node_free(coll_node *)
    void coll_node_set_limits(coll_node *, const coll_node_limits *)
    void coll_node_set_processes(coll_node *, const int64_t *)
    uint64_t coll_node_calls(const coll_node *)
    int coll_node_message_ok(const coll_node_message *, int size)
    void coll_node_begin(coll_node_call *, coll_node *, const coll_node_message *)
    int coll_node_progress(coll_node_call *)
    int coll_node_waiting(const coll_node_call *, int *, int)
    void coll_node_give_up(coll_node *)
    void coll_node_mix(coll_node *, uint64_t)
    int coll_node_writers(const coll_node *, int *, int)
    int coll_node_quitters(const coll_node *, int *, int)

cdef extern from "progress/node_wait.h" nogil:
    ctypedef struct coll_node_job:
        coll_node_call call
        const coll_mpi_api *mpi
        coll_endpoint *endpoint
        uint64_t polled
    coll_task coll_node_task(coll_node_job *)
    int coll_node_spin(coll_node_call *)

cdef extern from "p2p/p2p.h" nogil:
    enum:
        COLL_P2P_ANY
    ctypedef struct coll_p2p:
        pass
    ctypedef struct coll_p2p_peer:
        char *base
        size_t limit
        uint64_t area
        int64_t pid
    ctypedef struct coll_p2p_message:
        coll_p2p *group
        int receives, peer
        int64_t tag
        void *memory
        size_t bytes
        int status
        int source
        size_t received
    size_t coll_p2p_area_bytes(int)
    coll_p2p *coll_p2p_new(coll_heap *, int, int, const coll_p2p_peer *, int)
    void coll_p2p_free(coll_p2p *)
    int coll_p2p_begin(coll_p2p_message *)
    void coll_p2p_withdraw(coll_p2p_message *)
    void coll_p2p_give_up_all(coll_p2p *, int)
    int coll_p2p_pending(coll_p2p *)
    coll_task coll_p2p_task(coll_p2p_message *)

cdef extern from "hierarchy/hierarchy.h" nogil:
    enum:
        COLL_PLACES
        COLL_HIERARCHY_RUNS
        COLL_HIERARCHY_CHANNELS
    ctypedef struct coll_hierarchy:
        pass
    ctypedef struct coll_matrix:
        size_t rows, columns, bytes
    ctypedef struct coll_hierarchy_part:
        const coll_node_message *message
        coll_exec *run
        coll_matrix matrix
        int tag, after, source, target
        size_t source_at, target_at
    coll_hierarchy *coll_hierarchy_new(const coll_hierarchy_part *, int, coll_node *const *, const int *, void *)
    void coll_hierarchy_free(coll_hierarchy *)
    void coll_hierarchy_set_mpi(coll_hierarchy *, const coll_mpi_api *, coll_endpoint *)
    int coll_hierarchy_start(coll_hierarchy *, const void *, void *, int)
    int coll_hierarchy_busy(const coll_hierarchy *)
    coll_task coll_hierarchy_task(coll_hierarchy *)

cdef extern from "base/ticks.h" nogil:
    uint64_t coll_ticks()
    double coll_ticks_to_seconds(uint64_t)

cdef extern from "base/trace.h" nogil:
    enum:
        COLL_TRACE_BLOCKING
        COLL_TRACE_NONBLOCKING
        COLL_TRACE_PERSISTENT
        COLL_TRACE_WAIT
        COLL_TRACE_SPAN
    ctypedef struct coll_trace_event:
        uint64_t begin, returned, end
        uint64_t bytes, number
        int32_t site, root
        uint32_t comm
        uint16_t name
        uint8_t collective, form, thread, failed
    ctypedef struct coll_moment:
        uint64_t ticks, ns
    ctypedef struct coll_trace:
        coll_trace_event *events
        size_t count, most, dropped
        coll_moment *moments
        size_t nmoments
    int coll_trace_init(coll_trace *, size_t)
    void coll_trace_free(coll_trace *)
    void coll_trace_note(coll_trace *)
    coll_trace_event *coll_trace_add(coll_trace *, uint64_t)

cdef extern from "simulate/simulate.h" nogil:
    ctypedef struct coll_sim_network:
        int nranks, nhosts, nlevels, ngroups
        const int32_t *host
        const int32_t *group
        const double *host_gap
        const double *group_gap
        const double *slowness
        double alpha, local_alpha, local_gap, overhead, fold_gap, rendezvous, burst, jitter
        uint64_t seed
    ctypedef struct coll_sim_rounds:
        const int64_t *first_round
        const int64_t *first_message
        const int32_t *expected
        const double *folded
        const int64_t *to_round
        const double *bytes
        const uint8_t *folds
        const uint8_t *ahead
        int nsegments, in_flight
    int64_t coll_simulate(const coll_sim_network *, const coll_sim_rounds *, double *, double *)

cdef extern from "xla/handler.h" nogil:
    ctypedef struct coll_xla_frame:
        pass
    ctypedef struct coll_xla_call:
        int64_t site
        const void *input
        void *output
        int64_t inputs, outputs
    ctypedef int (*coll_xla_serve)(const coll_xla_call *, char **) noexcept nogil
    void coll_xla_install(coll_xla_serve)
    void *coll_xla_handler(coll_xla_frame *)
