-- A commit that affects other runs, in one statement. The function calls run in the order of FROM: each one needs the
-- result of the one before. holdfast_apply_following runs last.
-- name: commit_with_operations
SELECT c.verdicts[1], c.signals[1], c.due[1],
       {schema}.holdfast_apply_following(
           c.verdicts[1], c.more, at.now, $2, $3, $5, operation.list, new.list, part.list, {following.arguments})
  FROM {schema}.holdfast_build_operations({operations.arguments}) AS operation (list)
 CROSS JOIN {schema}.holdfast_build_new_runs({create.arguments}) AS new (list)
 CROSS JOIN (SELECT {schema}.holdfast_build_plans_and_units({plans_and_units.arguments})) AS part (list)
 CROSS JOIN LATERAL {schema}.holdfast_lock_for_operations($1, $5, $6, operation.list, new.list) AS at (now)
 CROSS JOIN LATERAL {schema}.holdfast_commit(at.now, $2, $3, $4, {commit.arguments}) AS c;
