/* What the custom calls of XLA on the CPU share: errors, attributes, and work divided among threads.
 *
 * No Python runs in a call: it would wait for its lock. */

#ifndef JAXPIPE_CALL_OF_XLA_H
#define JAXPIPE_CALL_OF_XLA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 }; /* of CBLAS */
enum { MOST_PARTS = 64 };

typedef void sgemm(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t,
                   const float *, int64_t, float, float *, int64_t);
typedef void bgemm(int, int, int, int64_t, int64_t, int64_t, float, const uint16_t *, int64_t,
                   const uint16_t *, int64_t, float, float *, int64_t);

/* Computes what is from `begin` to `end`; returns false without memory. */
typedef bool compute_range(const void *work, int64_t begin, int64_t end);

/* The parts of a piece of work: whoever comes takes the next one. */
typedef struct {
  compute_range *compute;
  int64_t size;
  int num_parts;
  atomic_int next, references;
  atomic_bool failed;
  int num_done;
  pthread_mutex_t lock;
  pthread_cond_t done;
  _Alignas(16) char work[]; /* a copy: tasks may outlive the call, with no part left */
} shared;

static void compute_parts(shared *s) {
  for (int part; (part = atomic_fetch_add(&s->next, 1)) < s->num_parts;) {
    int64_t begin = s->size * part / s->num_parts, end = s->size * (part + 1) / s->num_parts;
    if (!s->compute(s->work, begin, end)) atomic_store(&s->failed, true);
    pthread_mutex_lock(&s->lock);
    if (++s->num_done == s->num_parts) pthread_cond_signal(&s->done);
    pthread_mutex_unlock(&s->lock);
  }
}

static void release(shared *s) {
  if (atomic_fetch_sub(&s->references, 1) > 1) return;
  pthread_mutex_destroy(&s->lock);
  pthread_cond_destroy(&s->done);
  free(s);
}

static void run_task(void *data) {
  compute_parts(data);
  release(data);
}

static XLA_FFI_Error *error(const XLA_FFI_Api *api, const char *message) {
  XLA_FFI_Error_Create_Args args = {.struct_size = sizeof args,
                                    .message = message,
                                    .errc = XLA_FFI_Error_Code_INVALID_ARGUMENT};
  return api->XLA_FFI_Error_Create(&args);
}

static int64_t num_threads(const XLA_FFI_CallFrame *frame) {
  int64_t threads = 1;
  XLA_FFI_ThreadPool_NumThreads_Args args = {
      .struct_size = sizeof args, .ctx = frame->ctx, .num_threads = &threads};
  XLA_FFI_Error *none = frame->api->XLA_FFI_ThreadPool_NumThreads(&args);
  if (none != NULL) { /* without a pool */
    XLA_FFI_Error_Destroy_Args destroyed = {.struct_size = sizeof destroyed, .error = none};
    frame->api->XLA_FFI_Error_Destroy(&destroyed);
    return 1;
  }
  return threads;
}

/* Compute with this thread and those of XLA. This one waits for parts that another has begun, never
 * for one to begin: all threads may be here. */
static XLA_FFI_Error *compute_together(const XLA_FFI_CallFrame *frame, compute_range *compute,
                                       const void *work, size_t work_bytes, int64_t size,
                                       int num_parts) {
  shared *s = malloc(sizeof *s + work_bytes);
  if (s == NULL) {
    return compute(work, 0, size) ? NULL : error(frame->api, "a custom call: no memory");
  }
  s->compute = compute, s->size = size, s->num_parts = num_parts, s->num_done = 0;
  memcpy(s->work, work, work_bytes);
  atomic_init(&s->next, 0);
  atomic_init(&s->references, num_parts);
  atomic_init(&s->failed, false);
  pthread_mutex_init(&s->lock, NULL);
  pthread_cond_init(&s->done, NULL);
  XLA_FFI_Error *failed = NULL;
  for (int task = 1; task < num_parts; task++) {
    XLA_FFI_ThreadPool_Schedule_Args args = {
        .struct_size = sizeof args, .ctx = frame->ctx, .task = run_task, .data = s};
    if (failed == NULL) failed = frame->api->XLA_FFI_ThreadPool_Schedule(&args);
    if (failed != NULL) release(s);
  }
  compute_parts(s);
  pthread_mutex_lock(&s->lock);
  while (s->num_done < num_parts) pthread_cond_wait(&s->done, &s->lock);
  pthread_mutex_unlock(&s->lock);
  bool has_failed = atomic_load(&s->failed);
  release(s);
  if (failed == NULL && has_failed) return error(frame->api, "a custom call: no memory");
  return failed;
}

/* Compute work of a size in as many parts as there are threads, `most` at most. */
static XLA_FFI_Error *in_parts(const XLA_FFI_CallFrame *frame, compute_range *compute,
                               const void *work, size_t work_bytes, int64_t size, int64_t most) {
  int64_t parts = num_threads(frame);
  if (parts > most) parts = most;
  if (parts > MOST_PARTS) parts = MOST_PARTS;
  if (parts > 1) return compute_together(frame, compute, work, work_bytes, size, (int)parts);
  return compute(work, 0, size) ? NULL : error(frame->api, "a custom call: no memory");
}

/* The scalar attribute of a name and a type; NULL if there is none. */
static const void *attribute(const XLA_FFI_Attrs *attrs, const char *name, XLA_FFI_DataType type) {
  for (int64_t i = 0; i < attrs->size; i++) {
    const XLA_FFI_ByteSpan *given = attrs->names[i];
    if (given->len != strlen(name) || memcmp(given->ptr, name, given->len) != 0) continue;
    const XLA_FFI_Scalar *scalar = attrs->attrs[i];
    bool is_scalar = attrs->types[i] == XLA_FFI_AttrType_SCALAR && scalar->dtype == type;
    return is_scalar ? scalar->value : NULL;
  }
  return NULL;
}

static bool is_array(const XLA_FFI_Buffer *buffer, int64_t rank) {
  return buffer->dtype == XLA_FFI_DataType_F32 && buffer->rank == rank;
}

/* Whether XLA asks for the version of the API, as it does when a call is registered. */
static bool is_asked_for_version(const XLA_FFI_CallFrame *frame) {
  XLA_FFI_Extension_Base *extension = frame->extension_start;
  if (extension == NULL || extension->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)extension)->metadata;
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
  metadata->traits = 0;
  return true;
}

#endif
