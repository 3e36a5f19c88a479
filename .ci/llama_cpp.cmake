# Included by llama-cpp-python's project() when `make` builds it: leaves out what Lockstep never
# loads, and compiles libllama in few units. No flag of the compiler changes, and no instruction of
# ggml. Half of a build's time are the programs' common code and libmtmd (LLAVA_BUILD=OFF).

# the project forces this ON in the cache; a variable goes before that
set(LLAMA_BUILD_COMMON OFF)

# llama.cpp unites the models alone; ggml-cpu cannot be united
function(unite_llama)
    get_target_property(sources llama SOURCES)
    get_target_property(folder llama SOURCE_DIR)
    list(TRANSFORM sources PREPEND "${folder}/")
    set_source_files_properties(${sources} TARGET_DIRECTORY llama
        PROPERTIES SKIP_UNITY_BUILD_INCLUSION OFF)
endfunction()
cmake_language(DEFER CALL unite_llama)
