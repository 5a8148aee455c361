#!/bin/sh
# A PyTorch script on all nodes of a Slurm job: sbatch examples/slurm.sh [OPTIONS OF THE SCRIPT]
# torchrun starts the ranks of each node. They meet on the first one.
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 1 --rdzv_id "$SLURM_JOB_ID" \
    --rdzv_backend c10d --rdzv_endpoint "$first:29400" examples/torch_gpt.py --data README.md "$@"
