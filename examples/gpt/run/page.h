/* page.h - report.html: one page of a run, without a reference to another file.
 *
 * Budgets, policies and rows are drawn here.  The pictures of --output are copied into the page, so
 * the page comes last.  The page is XML, too: a parser can check that it is well formed. */
#ifndef TRAIN_PAGE_H
#define TRAIN_PAGE_H

#include "gpt/run/run.h"

/* ---- the page ------------------------------------------------------------------------------- */

/* Errors: OUT_OF_HOST_MEMORY, IO. */
memo_status page_write(const job* j, memo_error* error);

#endif
