#!/bin/bash
# Fine-tune on two Slurm nodes with eight GPUs each. NOT RUN YET, see docs/scale.md.
#
#   sbatch examples/cluster/slurm.sh
#
# Submit it where vitft is installed, on a disk that both nodes share. Ten minutes before the time
# limit, vitft saves its state and stops. Submit the file again to continue, also after a failure.
#SBATCH --job-name=vitft
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=04:00:00

arguments=(--data photos --weights vit_base_patch16_224_in21k --out runs/photos)
[[ -f runs/photos/config.toml ]] && arguments=(--resume runs/photos)
MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 bash -c 'exec torchrun \
    --nnodes "$SLURM_NNODES" --node-rank "$SLURM_NODEID" --nproc-per-node 8 \
    --master-addr "$MASTER" --master-port 29500 \
    -m -- vitft finetune "$@"' _ "${arguments[@]}" --max-time 230m
