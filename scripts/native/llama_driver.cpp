// Drives llama.cpp from standard input, one command a line, so that its steps can be timed in turn with ours.
//
//     llama_driver MODEL THREADS FLASH_ATTENTION(on|off) CONTEXT [CONTEXT ...]
//
// Opens one context of each size on one copy of the weights. Commands (CONTEXT is an index, from 0):
//     prefill CONTEXT N        clears the context, processes N tokens, logits of the last   -> seconds
//     decode CONTEXT DEPTH N   keeps the first DEPTH tokens (processes what is missing), then N single tokens, each
//                              with logits                                                   -> seconds of the N
//     logits CONTEXT ID...     clears the context, processes the ids                         -> the vocabulary's size,
//                              then float32 logits [ids, vocabulary] in binary
//     tokenize BYTES           followed by that many bytes of text                           -> ids
// Tokens are drawn at random, as llama-bench does: no sampler is timed. Replies are one line.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

namespace {

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail(const std::string& message) {
    std::cerr << "llama_driver: " << message << std::endl;
    exit(1);
}

class Driver {
  public:
    Driver(const char* path, int threads, bool flash, const std::vector<int>& sizes) {
        llama_log_set([](ggml_log_level level, const char* text, void*) {
            if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
        }, nullptr);
        llama_backend_init();
        model_ = llama_model_load_from_file(path, llama_model_default_params());
        if (!model_) fail(std::string("cannot load ") + path);
        vocabulary_ = llama_model_get_vocab(model_);
        for (int size : sizes) {
            llama_context_params params = llama_context_default_params();
            params.n_ctx = uint32_t(size);
            params.n_batch = uint32_t(std::min(size, 2048));
            params.n_ubatch = uint32_t(std::min(size, 512));
            params.n_threads = params.n_threads_batch = threads;
            params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
            params.no_perf = true;
            llama_context* context = llama_init_from_model(model_, params);
            if (!context) fail("cannot make a context of " + std::to_string(size) + " tokens");
            contexts_.push_back(context);
        }
    }

    double prefill(int index, int count) {
        llama_memory_clear(memory(index), true);
        const double start = seconds();
        process(index, random_tokens(count), 0, false);
        llama_synchronize(contexts_.at(index));
        return seconds() - start;
    }

    double decode(int index, int depth, int count) {
        llama_memory_t kept = memory(index);
        if (depth == 0) llama_memory_clear(kept, true);
        int present = llama_memory_seq_pos_max(kept, 0) + 1;
        if (present > depth && !llama_memory_seq_rm(kept, 0, depth, -1)) { // a window's cache cannot go back
            llama_memory_clear(kept, true);
            present = 0;
        }
        if (present < depth) process(index, random_tokens(depth - present), present, false);
        llama_synchronize(contexts_.at(index));
        const std::vector<llama_token> tokens = random_tokens(count);
        const double start = seconds();
        for (int i = 0; i < count; i++) {
            process(index, {tokens[i]}, depth + i, false);
            llama_synchronize(contexts_.at(index));
        }
        return seconds() - start;
    }

    void logits(int index, const std::vector<llama_token>& tokens) {
        llama_memory_clear(memory(index), true);
        process(index, tokens, 0, true);
        const size_t size = size_t(llama_vocab_n_tokens(vocabulary_));
        printf("%zu\n", size);
        fwrite(llama_get_logits(contexts_.at(index)), sizeof(float), size * tokens.size(), stdout);
        fflush(stdout);
    }

    std::vector<llama_token> tokenize(const std::string& text) {
        std::vector<llama_token> ids(text.size() + 8);
        const int count = llama_tokenize(vocabulary_, text.data(), int(text.size()), ids.data(), int(ids.size()), false, false);
        if (count < 0) fail("tokenization failed");
        ids.resize(size_t(count));
        return ids;
    }

  private:
    llama_memory_t memory(int index) { return llama_get_memory(contexts_.at(index)); }

    std::vector<llama_token> random_tokens(int count) {
        std::uniform_int_distribution<int> any(0, llama_vocab_n_tokens(vocabulary_) - 1);
        std::vector<llama_token> tokens(size_t(count), 0);
        for (llama_token& token : tokens) token = any(random_);
        return tokens;
    }

    // Processes tokens at positions first, first + 1, ... in calls of n_batch; logits of all, or of each call's last.
    void process(int index, const std::vector<llama_token>& tokens, int first, bool all_logits) {
        const int most = int(llama_n_batch(contexts_.at(index)));
        if (all_logits && int(tokens.size()) > most) fail("too many tokens for one call");
        for (int start = 0; start < int(tokens.size()); start += most) {
            const int count = std::min(most, int(tokens.size()) - start);
            llama_batch batch = llama_batch_init(count, 0, 1);
            batch.n_tokens = count;
            for (int i = 0; i < count; i++) {
                batch.token[i] = tokens[size_t(start + i)];
                batch.pos[i] = first + start + i;
                batch.n_seq_id[i] = 1;
                batch.seq_id[i][0] = 0;
                batch.logits[i] = all_logits || i == count - 1;
            }
            const int status = llama_decode(contexts_.at(index), batch);
            llama_batch_free(batch);
            if (status != 0) fail("llama_decode returned " + std::to_string(status));
        }
    }

    llama_model* model_;
    const llama_vocab* vocabulary_;
    std::vector<llama_context*> contexts_;
    std::mt19937 random_{1};
};

} // namespace

int main(int argc, char** argv) {
    if (argc < 5) fail("usage: llama_driver MODEL THREADS on|off CONTEXT...");
    std::vector<int> sizes;
    for (int i = 4; i < argc; i++) sizes.push_back(atoi(argv[i]));
    Driver driver(argv[1], atoi(argv[2]), strcmp(argv[3], "on") == 0, sizes);
    printf("ready\n");
    fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string command;
        int index = 0, depth = 0, count = 0;
        words >> command;
        if (command == "prefill" && words >> index >> count) {
            printf("%.9f\n", driver.prefill(index, count));
        } else if (command == "decode" && words >> index >> depth >> count) {
            printf("%.9f\n", driver.decode(index, depth, count));
        } else if (command == "logits" && words >> index) {
            std::vector<llama_token> ids;
            for (llama_token id; words >> id;) ids.push_back(id);
            driver.logits(index, ids);
        } else if (command == "tokenize" && words >> count) {
            std::string text(size_t(count), '\0');
            std::cin.read(text.data(), count);
            for (llama_token id : driver.tokenize(text)) printf("%d ", id);
            printf("\n");
        } else {
            fail("unknown command: " + line);
        }
        fflush(stdout);
    }
}
