// The fuzz target of an index's rows alone: fuzz_index.cpp without the samples that they point to,
// which take most of its time.
#define FASTDATA_ROWS_ALONE
#include "fuzz_index.cpp"
