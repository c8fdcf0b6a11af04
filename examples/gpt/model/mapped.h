/* mapped.h - a file that is read where it is mapped.  It must not shrink meanwhile. */
#ifndef GPT_MAPPED_H
#define GPT_MAPPED_H

#include <stdint.h>

typedef struct gpt_mapped {
    const unsigned char* bytes; /* NULL: the file is empty */
    int64_t n_bytes;
} gpt_mapped;

extern const char gpt_not_regular[]; /* a reason of gpt_map: a folder, a pipe, a device */

/* Maps a file.  A pipe is refused without waiting for its writer.  Returns why the file cannot be
 * read, until the next call of the system's; NULL: it can. */
const char* gpt_map(const char* path, gpt_mapped* file);

void gpt_unmap(gpt_mapped* file);

#endif
