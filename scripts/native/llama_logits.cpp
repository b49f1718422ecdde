// Prints llama.cpp's logits after every token, with a float32 cache and without flash attention.
//
//     llama_logits MODEL CONTEXT TOKEN...
//
// Output: int32 vocabulary size, then float32 [tokens, vocabulary], both in this machine's byte order.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

int main(int argc, char** argv) {
    if (argc < 4) {
        std::fprintf(stderr, "usage: llama_logits MODEL CONTEXT TOKEN...\n");
        return 2;
    }
    std::vector<llama_token> tokens;
    for (int i = 3; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));

    llama_log_set([](ggml_log_level level, const char* text, void*) {
        if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
    }, nullptr);
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    llama_model* model = llama_model_load_from_file(argv[1], model_params);
    if (!model) return 1;

    llama_context_params params = llama_context_default_params();
    params.n_ctx = uint32_t(std::atoi(argv[2]));
    params.n_batch = params.n_ubatch = params.n_ctx;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context* context = llama_init_from_model(model, params);
    if (!context) return 1;

    llama_batch batch = llama_batch_init(int32_t(tokens.size()), 0, 1);
    for (size_t i = 0; i < tokens.size(); ++i) {
        batch.token[i] = tokens[i];
        batch.pos[i] = llama_pos(i);
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = true;
    }
    batch.n_tokens = int32_t(tokens.size());
    if (llama_decode(context, batch) != 0) return 1;

    const int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    std::fwrite(&vocabulary, sizeof vocabulary, 1, stdout);
    for (size_t i = 0; i < tokens.size(); ++i) {
        std::fwrite(llama_get_logits_ith(context, int32_t(i)), sizeof(float), size_t(vocabulary), stdout);
    }
    llama_batch_free(batch);
    llama_free(context);
    llama_model_free(model);
    return 0;
}
