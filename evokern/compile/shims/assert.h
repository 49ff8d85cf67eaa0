// NVRTC provides assert.
#pragma once
#ifndef __cplusplus
#define static_assert _Static_assert
#endif
