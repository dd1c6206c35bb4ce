// Encodes one image again and again with llama.cpp's image encoder (tools/mtmd/clip.h), for benchmarks/vision.py, which
// builds it: mtmd_encode MMPROJ PIXELS SIDE THREADS FLASH OUT. PIXELS are normalized floats, (SIDE, SIDE, 3). Each line
// on standard input is answered with the seconds that one encoding took, and those of processor time; its rows are in
// OUT after the first.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "clip-impl.h"
#include "clip.h"

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: mtmd_encode MMPROJ PIXELS SIDE THREADS FLASH OUT\n");
    return 2;
  }
  const int side = std::atoi(argv[3]), threads = std::atoi(argv[4]);
  clip_context_params params{};
  params.use_gpu = false;
  params.flash_attn_type = std::atoi(argv[5]) ? CLIP_FLASH_ATTN_TYPE_ENABLED : CLIP_FLASH_ATTN_TYPE_DISABLED;
  params.image_min_tokens = params.image_max_tokens = -1;
  clip_ctx* context = clip_init(argv[1], params).ctx_v;
  if (!context) return 1;

  std::vector<float> pixels(static_cast<size_t>(side) * side * 3), rows;
  std::ifstream(argv[2], std::ios::binary).read(reinterpret_cast<char*>(pixels.data()), pixels.size() * sizeof(float));
  clip_image_f32 image;
  image.set_size({side, side}, false, false);
  image.cpy_buf(pixels);
  rows.resize(static_cast<size_t>(clip_n_output_tokens(context, &image)) * clip_n_mmproj_embd(context));
  std::puts("ready");
  std::fflush(stdout);
  bool first = true;
  for (std::string line; std::getline(std::cin, line); first = false) {
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t used = std::clock();
    if (!clip_image_encode(context, threads, &image, rows)) return 1;
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    if (first) {
      std::ofstream(argv[6], std::ios::binary)
          .write(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float));
    }
    std::printf("%.6f %.6f\n", taken.count(), static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC);
    std::fflush(stdout);
  }
  clip_free(context);
  return 0;
}
