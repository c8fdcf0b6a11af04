#include "gpt/model/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const char gpt_not_regular[] = "not a regular file";

const char* gpt_map(const char* path, gpt_mapped* file) {
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat info;
    void* bytes = NULL;
    const char* why = NULL;
    memset(file, 0, sizeof *file);
    if (fd < 0 || fstat(fd, &info))
        why = strerror(errno);
    else if (!S_ISREG(info.st_mode))
        why = gpt_not_regular;
    else if (info.st_size > 0)
        bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (bytes == MAP_FAILED) why = strerror(errno);
    if (fd >= 0) close(fd);
    if (why || !bytes) return why;
    file->bytes = (const unsigned char*)bytes;
    file->n_bytes = (int64_t)info.st_size;
    return NULL;
}

void gpt_unmap(gpt_mapped* file) {
    if (file->bytes) munmap((void*)(uintptr_t)file->bytes, (size_t)file->n_bytes);
    memset(file, 0, sizeof *file);
}
