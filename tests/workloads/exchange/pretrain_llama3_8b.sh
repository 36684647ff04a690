#!/bin/bash
# Llama 3 8B on 4 nodes
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${SLURM_NNODES:-4}
TP=2
PP=2
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --node_rank $SLURM_NODEID
)
MODEL_ARGS=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 500000 --normalization RMSNorm
    --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0 --vocab-size 128256
    --attention-backend fused
)
TRAINING_ARGS="--micro-batch-size 1 --global-batch-size $((TP * 64)) --train-iters 1000 --lr 3e-4 --bf16"
PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size "$PP"
    --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --recompute-activations
)
torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \
    "${MODEL_ARGS[@]}" $TRAINING_ARGS \
    ${PARALLEL_ARGS[@]} --data-path /data --save ckpt
