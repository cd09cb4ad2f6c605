#include "xla/handler.h"

#include <stdlib.h>
#include <string.h>

static coll_xla_serve *server;

void coll_xla_install(coll_xla_serve *serve) {
    server = serve;
}

static coll_xla_error *fail(const coll_xla_frame *frame, int code, const char *message) {
    coll_xla_new_error args = {.struct_size = sizeof args, .message = message, .code = code};
    return frame->api->error_create(&args);
}

/* Tell XLA which version of the interface is spoken here: the newest that both know. XLA refuses the handler if it does
 * not speak that one. If structs are too short, or if XLA is too old, XLA hears 0.0, which it refuses. The XLAs of
 * version 0.1 do not say with this question which version they have. */
static void describe(const coll_xla_frame *frame, coll_xla_metadata_extension *asked) {
    const coll_xla_api *api = frame->api;
    coll_xla_metadata *told = asked->metadata;
    int minor = COLL_XLA_OLDEST;
    if (asked->base.struct_size < sizeof asked->base || told->struct_size < sizeof *told ||
        told->version.struct_size < sizeof told->version)
        return;
    told->version.major = told->version.minor = 0;
    if (api != NULL) {
        if (api->struct_size < sizeof *api || api->version.struct_size < sizeof api->version ||
            api->version.major != COLL_XLA_MAJOR || api->version.minor < COLL_XLA_OLDEST)
            return;
        minor = api->version.minor < COLL_XLA_NEWEST ? api->version.minor : COLL_XLA_NEWEST;
    }
    told->version.major = COLL_XLA_MAJOR;
    told->version.minor = minor;
}

static int is_site(const coll_xla_attributes *attributes, int64_t i) {
    const coll_xla_text *name = attributes->names[i];
    const coll_xla_scalar *value = attributes->items[i];
    return name->length == 4 && memcmp(name->data, "site", 4) == 0 && attributes->types[i] == COLL_XLA_SCALAR &&
           value->dtype == COLL_XLA_INT64;
}

/* The one buffer that is no token, in `found` (NULL if there is none); false if there are others. */
static int find(const coll_xla_buffers *among, const coll_xla_buffer **found) {
    *found = NULL;
    for (int64_t i = 0; i < among->size; i++) {
        const coll_xla_buffer *buffer = among->items[i];
        if (buffer->struct_size < sizeof *buffer)
            return 0;
        if (buffer->dtype == COLL_XLA_TOKEN)
            continue;
        if (*found != NULL)
            return 0;
        *found = buffer;
    }
    return 1;
}

static int64_t elements(const coll_xla_buffer *buffer) {
    int64_t n = 1;
    for (int64_t i = 0; i < buffer->rank; i++)
        n *= buffer->dims[i];
    return n;
}

/* Read a call; returns NULL, or what is wrong with the frame. */
static const char *take(const coll_xla_frame *frame, coll_xla_call *call) {
    const coll_xla_buffer *input, *output;
    if (frame->struct_size < sizeof *frame || frame->arguments.struct_size < sizeof frame->arguments ||
        frame->results.struct_size < sizeof frame->results || frame->attributes.struct_size < sizeof frame->attributes)
        return "collectives.jax: this XLA passes other data than its interface promises";
    call->site = -1;
    for (int64_t i = 0; i < frame->attributes.size; i++)
        if (is_site(&frame->attributes, i))
            call->site = *(int64_t *)((coll_xla_scalar *)frame->attributes.items[i])->value;
    if (call->site < 0)
        return "collectives.jax: the call has no attribute site";
    if (!find(&frame->arguments, &input) || !find(&frame->results, &output))
        return "collectives.jax: the call has more than one operand or result";
    call->input = input != NULL ? input->data : NULL;
    call->output = output != NULL ? output->data : NULL;
    call->inputs = input != NULL ? elements(input) : -1;
    call->outputs = output != NULL ? elements(output) : -1;
    return NULL;
}

coll_xla_error *coll_xla_handler(coll_xla_frame *frame) {
    coll_xla_call call;
    coll_xla_error *failed;
    char *message = NULL;
    const char *wrong;
    for (coll_xla_extension *e = frame->extension; e != NULL; e = e->next)
        if (e->type == COLL_XLA_METADATA) {
            describe(frame, (coll_xla_metadata_extension *)e);
            return NULL;
        }
    if (frame->stage != COLL_XLA_EXECUTE)
        return NULL;
    wrong = take(frame, &call);
    if (wrong == NULL && server == NULL)
        wrong = "collectives.jax: not imported in this process";
    if (wrong != NULL)
        return fail(frame, COLL_XLA_INVALID, wrong);
    if (server(&call, &message) == 1)
        return NULL;
    failed = fail(frame, COLL_XLA_INTERNAL, message != NULL ? message : "collectives.jax: a call failed");
    free(message);
    return failed;
}
