// A CUDA driver without a GPU, for tests of operators: it records what a package passes to the driver.
//
// The library takes the place of libcuda.so.1 and of libtorch_cuda.so. Memory of the host takes the place of GPU memory.

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Config {  // CUlaunchConfig
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  struct Attribute {
    int id, padding;
    unsigned long long value[8];
  }* attributes;
  unsigned count;
};

struct Function {
  std::string name;
  int module;
};

std::ostringstream events;
std::vector<Function*> functions;
std::set<std::string> failing;
void *current = nullptr, *stream = nullptr, *contexts[8] = {};
std::vector<void*> pushed;
int arguments = 0, modules = 0, mode = 0, capability = 89, pause_at = -1;
unsigned long long graph = 0;
size_t persisting = 0;

int event(const std::string& text, const char* name) {
  events << text << "\n";
  return failing.count(name) ? 1 : 0;
}

template <typename... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream text;
  ((text << parts << " "), ...);
  return text.str();
}

}  // namespace

extern "C" {

// ---- for tests

const char* fake_events() {
  static std::string found;
  found = events.str();
  events.str("");
  return found.c_str();
}
void fake_arguments(int count) { arguments = count; }
void fake_stream(uint64_t value) { stream = reinterpret_cast<void*>(value); }
void fake_graph(unsigned long long number) { graph = number; }
void fake_capability(int value) { capability = value; }
void fake_failure(const char* name) { failing.clear(); if (*name) failing.insert(name); }

// ---- torch

int aoti_torch_get_current_cuda_stream(int, void** found) {
  *found = stream;
  return 0;
}
int fake_device_index(void*, int* index) {
  *index = 0;
  return 0;
}

// ---- the driver

int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : 1 << 20;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = contexts + device;
  return event(joined("retain", device), "retain");
}
int cuCtxGetCurrent(void** context) {
  *context = current;
  return 0;
}
int cuCtxPushCurrent_v2(void* context) {
  pushed.push_back(current);
  current = context;
  return event("push", "push");
}
int cuCtxPopCurrent_v2(void** context) {
  *context = current;
  current = pushed.back();
  pushed.pop_back();
  return event("pop", "pop");
}
int cuCtxGetLimit(size_t* value, int) {
  *value = persisting;
  return 0;
}
int cuCtxSetLimit(int limit, size_t value) {
  persisting = value;
  return event(joined("limit", limit, value), "limit");
}
int cuThreadExchangeStreamCaptureMode(int* other) {
  std::swap(*other, mode);
  return 0;
}
int cuStreamGetCaptureInfo_v2(void*, int* status, unsigned long long* number, void*, void*, void*) {
  *status = graph != 0;
  *number = graph;
  return 0;
}
int cuModuleLoadData(void** module, const void*) {
  const int failed = event(joined("load", ++modules, mode, current != nullptr), "load");
  *module = failed ? nullptr : reinterpret_cast<void*>(static_cast<uint64_t>(modules));
  return failed;
}
int cuModuleUnload(void* module) { return event(joined("unload", reinterpret_cast<uint64_t>(module)), "unload"); }
int cuModuleGetFunction(void** function, void* module, const char* name) {
  functions.push_back(new Function{name, static_cast<int>(reinterpret_cast<uint64_t>(module))});
  *function = functions.back();
  return event(joined("function", name), "function");
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  return event(joined("attribute", static_cast<Function*>(function)->name, attribute, value), "attribute");
}
int cuMemsetD8Async(unsigned long long address, unsigned char value, size_t bytes, void* on) {
  std::memset(reinterpret_cast<void*>(address), value, bytes);
  return event(joined("fill", address, int(value), bytes, reinterpret_cast<uint64_t>(on)), "fill");
}
int cuLaunchKernelEx(const Config* config, void* function, void** parameters, void** extra) {
  const auto& called = *static_cast<Function*>(function);
  std::ostringstream text;
  text << "launch " << called.name << " " << called.module << " " << reinterpret_cast<uint64_t>(config->stream);
  for (int i = 0; i < 3; i++) text << " " << config->grid[i];
  for (int i = 0; i < 3; i++) text << " " << config->block[i];
  text << " " << config->shared_bytes << " " << (current != nullptr) << (extra == nullptr);
  for (int i = 0; i < arguments; i++) text << " " << *static_cast<uint64_t*>(parameters[i]);
  for (unsigned i = 0; i < config->count; i++) {
    text << " attribute " << config->attributes[i].id;
    for (int j = 0; j < 4; j++) text << " " << config->attributes[i].value[j];
  }
  return event(text.str(), "launch");
}
int cuTensorMapEncodeTiled(void* map, int dtype, uint32_t rank, void* address, const uint64_t* sizes,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
                           int swizzle, int promotion, int fill) {
  *static_cast<void**>(map) = address;
  std::ostringstream text;
  text << "map " << reinterpret_cast<uint64_t>(map) % 64 << " " << dtype << " " << rank;
  for (uint32_t i = 0; i < rank; i++) text << " " << sizes[i];
  for (uint32_t i = 0; i + 1 < rank; i++) text << " " << strides[i];
  for (uint32_t i = 0; i < rank; i++) text << " " << box[i] << " " << steps[i];
  text << " " << interleave << " " << swizzle << " " << promotion << " " << fill;
  return event(text.str(), "map");
}
int cuGetErrorString(int, const char** text) {
  *text = "a failure of the test";
  return 0;
}
}
