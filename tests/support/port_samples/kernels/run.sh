#!/bin/bash
export CUDA_VISIBLE_DEVICES=0,1
nvidia-smi -L  # portagpu: ignore[PG303]
nvcc -arch=sm_90 reduce.cu
torchrun train.py
docker run --gpus all --rm trainer
