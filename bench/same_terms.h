#pragma once

#include <string>

// What all systems of a benchmark have in common, whoever made them.

namespace trireme::bench {

// For every process that is started from now on: one thread per rank, and a C library that keeps
// the memory that is freed. Left to itself it gives large blocks back to the kernel and gets them
// anew, page by page, in every step and every large collective of those systems that allocate.
void set_same_terms();

// The same for the memory of this process.
void keep_freed_memory();

// A sentence for the head of a table.
std::string same_terms_text();

}  // namespace trireme::bench
