// NVRTC provides size_t, ptrdiff_t and NULL, but not nullptr_t and max_align_t.
#pragma once
typedef decltype(nullptr) nullptr_t;
namespace std {
using ::nullptr_t;
using ::ptrdiff_t;
using ::size_t;
}  // namespace std
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif
