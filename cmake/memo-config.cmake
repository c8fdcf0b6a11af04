# memo-config.cmake - the targets of memo, which is headers: for find_package(memo) after `make install` or
# `cmake --install`, and for add_subdirectory and FetchContent by CMakeLists.txt, which sets memo_include.
#
#   memo::memo    memo.h, memo_plan.h; lp_solve is the user's to find, see memo_plan.h
#   memo::sp      memo_sp.h; NCCL likewise
#   memo::cuda    memo_cuda.cuh; first find_package(CUDAToolkit)
#   memo::extras  the headers of extras/
if(NOT memo_include)
    get_filename_component(memo_include "${CMAKE_CURRENT_LIST_DIR}/../../../include" ABSOLUTE)
endif()
if(NOT TARGET memo::memo)
    foreach(part memo sp cuda extras)
        add_library(memo::${part} INTERFACE IMPORTED GLOBAL)
    endforeach()
    target_include_directories(memo::memo INTERFACE "${memo_include}")
    target_link_libraries(memo::memo INTERFACE pthread m)
    target_link_libraries(memo::sp INTERFACE memo::memo)
    target_link_libraries(memo::cuda INTERFACE memo::memo CUDA::cudart)
    target_link_libraries(memo::extras INTERFACE memo::sp)
    if(EXISTS "${memo_include}/memo/extras") # installed; otherwise the headers lie side by side
        target_include_directories(memo::extras INTERFACE "${memo_include}/memo")
    endif()
endif()
unset(memo_include)
