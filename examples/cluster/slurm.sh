#!/bin/bash
# Fine-tune on two Slurm nodes with eight GPUs each. NOT RUN YET, see docs/scale.md.
#
#   sbatch examples/cluster/slurm.sh
#
# Five minutes before the time limit, vitft saves its state. Submit the file again to continue.
#SBATCH --job-name=vitft
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@300

RUN=runs/photos
arguments=(--data photos --out "$RUN")
[[ -d "$RUN" ]] && arguments=(--resume "$RUN")
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "$SLURM_GPUS_ON_NODE" \
    --rdzv-backend c10d --rdzv-endpoint "$head_node:29500" --rdzv-id "$SLURM_JOB_ID" \
    --max-restarts 3 -m -- vitft finetune "${arguments[@]}"
