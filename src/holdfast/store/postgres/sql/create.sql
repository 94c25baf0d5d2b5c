-- name: create
SELECT ord, result, run, number, instance, at, ended, woken, work, claimed
  FROM {schema}.holdfast_create(
           $1, $2, $3, {schema}.holdfast_build_new_runs({create.arguments}),
           {schema}.holdfast_build_plans_and_units({plans_and_units.arguments}));

-- name: create_with_policy
SELECT result, run, ended, woken, work, limit_name
  FROM {schema}.holdfast_create_with_policy(
           $1, $2, $3, {schema}.holdfast_build_new_runs({create.arguments}),
           {schema}.holdfast_build_plans_and_units({plans_and_units.arguments}), $4, $5, $6, $7, $8, $9, $10, $11);

-- name: create_one
SELECT {schema}.holdfast_create_one($1, $2, {create_one.run.arguments});

-- name: create_one_of_version
SELECT {schema}.holdfast_create_one($1, $2, {create_one.arguments});
