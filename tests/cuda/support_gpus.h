/* Which GPUs a check may use. */
#ifndef SUPPORT_GPUS_H
#define SUPPORT_GPUS_H

#include <cuda_runtime_api.h>

/* GPUs that are Hoppers and, from the first, reach each other; at most `most`. */
static inline int support_gpus(int most) {
  int devices = 0, good = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return 0;
  for (; good < devices && good < most; good++) {
    int major = 0, minor = 0, reach = 1;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, good);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, good);
    for (int other = 0; other < good && reach; other++)
      if (cudaDeviceCanAccessPeer(&reach, good, other) != cudaSuccess) reach = 0;
    if (major != 9 || minor != 0 || !reach) break;
  }
  return good;
}

#endif
