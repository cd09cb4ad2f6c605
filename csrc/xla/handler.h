/* The function that XLA calls for our collectives: XLA's foreign function interface, without XLA's headers.
 *
 * XLA and a handler exchange plain C structs. Each begins with its size, and only grows at its end in one major version
 * of the interface. Declared here are the beginnings that the handler uses. A struct that is shorter is an error. */
#ifndef COLL_XLA_HANDLER_H
#define COLL_XLA_HANDLER_H

#include <stddef.h>
#include <stdint.h>

#define COLL_XLA_MAJOR  0
#define COLL_XLA_OLDEST 1 /* minor versions for which these declarations are known to hold */
#define COLL_XLA_NEWEST 3

/* Numbers of the interface. */
enum { COLL_XLA_EXECUTE = 3, COLL_XLA_METADATA = 1, COLL_XLA_SCALAR = 3, COLL_XLA_INT64 = 5, COLL_XLA_TOKEN = 17 };
enum { COLL_XLA_INVALID = 3, COLL_XLA_INTERNAL = 13 };

typedef struct coll_xla_error coll_xla_error; /* XLA's own */

typedef struct coll_xla_extension {
    size_t struct_size;
    int type;
    struct coll_xla_extension *next;
} coll_xla_extension;

typedef struct coll_xla_version {
    size_t struct_size;
    coll_xla_extension *extension;
    int major, minor;
} coll_xla_version;

typedef struct coll_xla_new_error {
    size_t struct_size;
    coll_xla_extension *extension;
    const char *message;
    int code;
} coll_xla_new_error;

typedef struct coll_xla_api {
    size_t struct_size;
    coll_xla_extension *extension;
    coll_xla_version version;
    const void *internal;
    coll_xla_error *(*error_create)(coll_xla_new_error *);
} coll_xla_api;

typedef struct coll_xla_buffer {
    size_t struct_size;
    coll_xla_extension *extension;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} coll_xla_buffer;

typedef struct coll_xla_buffers { /* arguments, and results */
    size_t struct_size;
    coll_xla_extension *extension;
    int64_t size;
    int *types;
    void **items;
} coll_xla_buffers;

typedef struct coll_xla_text {
    const char *data;
    size_t length;
} coll_xla_text;

typedef struct coll_xla_scalar {
    int dtype;
    void *value;
} coll_xla_scalar;

typedef struct coll_xla_attributes {
    size_t struct_size;
    coll_xla_extension *extension;
    int64_t size;
    int *types;
    coll_xla_text **names;
    void **items;
} coll_xla_attributes;

typedef struct coll_xla_frame {
    size_t struct_size;
    coll_xla_extension *extension;
    const coll_xla_api *api;
    void *context;
    int stage;
    coll_xla_buffers arguments, results;
    coll_xla_attributes attributes;
} coll_xla_frame;

typedef struct coll_xla_metadata {
    size_t struct_size;
    coll_xla_version version;
} coll_xla_metadata;

typedef struct coll_xla_metadata_extension {
    coll_xla_extension base;
    coll_xla_metadata *metadata;
} coll_xla_metadata_extension;

/* One call: the attribute "site", and the operand and the result beside the tokens, each NULL if there is none. */
typedef struct coll_xla_call {
    int64_t site;
    const void *input;
    void *output;
    int64_t inputs, outputs; /* elements; -1 without operand, or result */
} coll_xla_call;

/* Serves a call; returns 1, or anything else with a message that it has allocated with malloc, or with none. */
typedef int coll_xla_serve(const coll_xla_call *call, char **message);

/* Let `serve` serve calls. */
void coll_xla_install(coll_xla_serve *serve);

/* XLA's handler. It answers questions for metadata, and passes calls to what is installed. */
coll_xla_error *coll_xla_handler(coll_xla_frame *frame);

#endif
