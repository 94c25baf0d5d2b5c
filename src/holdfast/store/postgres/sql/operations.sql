-- A commit that affects other runs, in one statement: $7 to $18 are its operations, $19 to $73 the runs that it starts
-- with their plans and units, $74 to $126 its own rows, as in a batch, and the rest are the arguments of
-- holdfast_apply_following. The function calls run in this order: each one needs the result of the one before.
-- name: commit_with_operations
SELECT c.verdicts[1], c.signals[1], c.due[1],
       {schema}.holdfast_apply_following(
           c.verdicts[1], c.more, at.now, $2, $3, $5, operation.list, new.list, part.list,
           $127, $128, $129, $130, $131, $132, $133, $134, $135, $136, $137, $138, $139, $140, $141, $142, $143, $144,
           $145, $146, $147, $148, $149, $150, $151, $152, $153, $154, $155, $156, $157, $158, $159, $160, $161)
  FROM {schema}.holdfast_build_operations(
           $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18) AS operation (list)
 CROSS JOIN {schema}.holdfast_build_new_runs(
           $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37, $38, $39, $40,
           $41, $42, $43, $44, $45, $46, $47, $48, $49, $50, $51) AS new (list)
 CROSS JOIN (SELECT {schema}.holdfast_build_plans_and_units(
           $52, $53, $54, $55, $56, $57, $58, $59, $60, $61, $62, $63, $64, $65, $66, $67, $68, $69, $70, $71, $72,
           $73)) AS part (list)
 CROSS JOIN LATERAL {schema}.holdfast_lock_for_operations($1, $5, $6, operation.list, new.list) AS at (now)
 CROSS JOIN LATERAL {schema}.holdfast_commit(
           at.now, $2, $3, $4,
           $74, $75, $76, $77, $78, $79, $80, $81, $82, $83, $84, $85, $86, $87, $88, $89, $90, $91, $92, $93, $94, $95,
           $96, $97, $98, $99, $100, $101, $102, $103, $104, $105, $106, $107, $108, $109, $110, $111, $112, $113, $114,
           $115, $116, $117, $118, $119, $120, $121, $122, $123, $124, $125, $126) AS c;
