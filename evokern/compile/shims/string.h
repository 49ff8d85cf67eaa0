// NVRTC provides memcpy, memset and similar functions.
#pragma once
