// For compilers without libFuzzer: mutates the corpus blindly. Arguments: seconds, files.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  std::vector<std::vector<uint8_t>> corpus;
  for (int i = 2; i < argc; i++) {
    std::ifstream file(argv[i], std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  std::mt19937_64 random(std::random_device{}());
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[1]));
  long runs = 0;
  while (std::chrono::steady_clock::now() < end) {
    std::vector<uint8_t> input = corpus[random() % corpus.size()];
    if (input.empty()) continue;
    for (int n = 1 << random() % 5; n > 0; n--) {
      // Half of the changes hit the head: control bytes, seek table, markers.
      const size_t within = random() % 2 ? std::min<size_t>(input.size(), 700) : input.size();
      input[random() % within] = static_cast<uint8_t>(random() % 4 ? random() : random() % 2 * 255);
    }
    if (random() % 8 == 0) input.resize(random() % input.size());
    LLVMFuzzerTestOneInput(input.data(), input.size());
    runs++;
  }
  std::printf("%ld executions\n", runs);
}
