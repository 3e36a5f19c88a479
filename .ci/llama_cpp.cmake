# `make` adds this file to the project() of llama-cpp-python. It omits targets that Lockstep never
# loads, and compiles libllama in few units. Compiler flags and ggml's code do not change. The common
# code of the programs and libmtmd (LLAVA_BUILD=OFF) would take half of the build time.

# the project sets this to ON in the cache, and a variable has priority over the cache
set(LLAMA_BUILD_COMMON OFF)

# llama.cpp enables unity builds only for the models; ggml-cpu does not compile as one unit
function(unite_llama)
    get_target_property(sources llama SOURCES)
    get_target_property(folder llama SOURCE_DIR)
    list(TRANSFORM sources PREPEND "${folder}/")
    set_source_files_properties(${sources} TARGET_DIRECTORY llama
        PROPERTIES SKIP_UNITY_BUILD_INCLUSION OFF)
endfunction()
cmake_language(DEFER CALL unite_llama)
