// A model's vocabulary as llama.cpp's samplers want it. Compiled to a library that Python opens.
#include "llama.h"

extern "C" const llama_vocab* open_vocabulary(const char* path) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    const llama_model* model = llama_model_load_from_file(path, params);
    return model ? llama_model_get_vocab(model) : nullptr;
}
